"""Forms in which secrets occur in logs, environments, command lines and documents, and what a bundle keeps of them.

The forms were written without reading the scrubber. ``KEY`` and ``HUB`` are values of variables that the inventory and
the environment name; ``V`` and ``W`` are secrets that no name points to.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from pathlib import Path
from urllib.parse import quote

from sparkcluster.inspect.bundle import Scrubber

KEY = "tUr9/kV+e5Wq2ZxB-Lm7"
HUB = "hub.Qy3sNf8Pd1Jc6Ga4"
V = "kR7mWq2ZtB9xLp4N"
W = "yH5cVd8SgF3jTn6E"


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


PEM_BODY = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ"

# name, text, secrets that must not be in the bundle
FORMS: list[tuple[str, str, tuple[str, ...]]] = [
    # environments
    ("env", f"VLLM_API_KEY={V}", (V,)),
    ("export", f"export TOKEN={V}", (V,)),
    ("shell trace, quoted", f"+ export 'GITHUB_TOKEN={V}'", (V,)),
    ("PASSWORD=", f"PASSWORD={V}", (V,)),
    ("PGPASSWORD=", f"PGPASSWORD={V} psql -h 10.0.0.4", (V,)),
    ("systemd Environment", f'Environment="REGISTRY_PASSWORD={V}"', (V,)),
    ("docker inspect Env", f'"Env": ["PATH=/usr/bin", "WANDB_API_KEY={V}"],', (V,)),
    ("name and value, YAML", f"- name: SERVICE_TOKEN\n  value: {V}\n", (V,)),
    ("name and value, JSON", f'{{"name": "SERVICE_TOKEN", "value": "{V}"}}', (V,)),
    # YAML
    ("YAML", f"password: {V}", (V,)),
    ("YAML, quoted, with spaces", f'passphrase: "correct {V} staple {W}"', (V, W)),
    ("YAML, flow list", f"api_keys: [{V}, {W}]", (V, W)),
    ("YAML, list", f"api_key:\n  - {V}\n  - {W}\nport: 8000\n", (V, W)),
    ("YAML, block", f"client_secret: |\n  {V}\n  {W}\nport: 8000\n", (V, W)),
    # JSON, Python, XML
    ("JSON", f'{{"api_key": "{V}", "port": 8000}}', (V,)),
    ("JSON, camel case", f'{{"secretAccessKey":"{V}","accessToken":"{W}"}}', (V, W)),
    ("JSON, list", f'{{"api_key": ["{V}", "{W}"]}}', (V, W)),
    ("JSON over lines", f'"api_key": [\n    "{V}",\n    "{W}"\n  ],', (V, W)),
    ("JSON in JSON", f'{{"body": "{{\\"api_key\\": \\"{V}\\"}}"}}', (V,)),
    ("JSON in JSON in JSON", f'"{{\\\\\\"token\\\\\\": \\\\\\"{V}\\\\\\"}}"', (V,)),
    ("Python dict", f"non-default args: {{'model': 'm', 'api_key': ['{V}'], 'port': 8000}}", (V,)),
    ("Python repr", f"Namespace(host='0.0.0.0', api_key=['{V}', '{W}'], hf_token=None)", (V, W)),
    ("Python bytes", f"{{b'x-api-key': b'{V}'}}", (V,)),
    ("XML", f"<password>{V}</password>", (V,)),
    ("HTML-escaped JSON", f"&quot;api_key&quot;: &quot;{V}&quot;", (V,)),
    # command lines
    ("--api-key KEY", f"vllm serve m --api-key {V} --port 8000", (V,)),
    ("--api-key=KEY", f"vllm serve m --api-key={V} --port 8000", (V,)),
    ("--api-key A B", f"vllm serve m --api-key {V} {W} --port 8000", (V, W)),
    ("argv, JSON", f'["vllm", "serve", "--api-key", "{V}", "{W}", "--port", "8000"]', (V, W)),
    ("argv, Python", f"['vllm', 'serve', '--api-key', '{V}']", (V,)),
    ("curl -u", f"curl -u admin:{V} https://registry.example/v2/", (V,)),
    ("sshpass -p", f"sshpass -p {V} ssh spark@10.0.0.4", (V,)),
    # headers
    ("Bearer", f"Authorization: Bearer {V}", (V,)),
    ("Basic", f"authorization: Basic {b64('admin:' + V)}", (b64("admin:" + V),)),
    ("header in JSON", f'{{"headers": {{"Authorization": "Bearer {V}"}}}}', (V,)),
    ("Bearer alone", f"rejected 'Bearer {V}' from 10.0.0.4", (V,)),
    ("X-Api-Key", f"curl -H 'X-Api-Key: {V}' http://10.0.0.4:8000", (V,)),
    ("Cookie", f"Cookie: theme=dark; sid={V}; lang={W}", (V, W)),
    ("Set-Cookie", f"< set-cookie: sid={V}; HttpOnly; Path=/", (V,)),
    ("header pairs", f"[('host', 'spark'), ('cookie', 'sid={V}'), ('x-auth-token', '{W}')]", (V, W)),
    # addresses
    ("token@host", f"fatal: could not read https://{V}@github.com/a/b.git", (V,)),
    ("user:password@host", f"proxy http://ops:{V}@proxy.example:3128/", (V,)),
    (":password@host", f"redis://:{V}@10.0.0.4:6379/0", (V,)),
    ("query", f"GET /v1/models?token={V}&limit=5 HTTP/1.1", (V,)),
    ("query, percent-encoded", f"next=%2Fv1%3Fapi_key%3D{V}%26limit%3D5", (V,)),
    # files
    ("netrc", f"machine huggingface.co login me password {V}", (V,)),
    ("docker auths", f'{{"auths": {{"ghcr.io": {{"auth": "{b64("me:" + V)}"}}}}}}', (b64("me:" + V),)),
    ("PEM", f"-----BEGIN OPENSSH PRIVATE KEY-----\n{PEM_BODY}\n-----END OPENSSH PRIVATE KEY-----", (PEM_BODY,)),
    (
        "PEM in JSON",
        f'"-----BEGIN PRIVATE KEY-----\\n{PEM_BODY}\\n-----END PRIVATE KEY-----\\n"',
        (PEM_BODY,),
    ),
    # shapes, without a name
    ("hf_", f"using hf_{V}{W}ab for the hub", (V, W)),
    ("sk-", f"openai said sk-proj-{V}{W} is invalid", (V, W)),
    ("ghp_", f"remote: ghp_{V}{W}abcd", (V, W)),
    ("AWS", f"AKIAIOSFODNN7EXAMPLE and aws_secret_access_key = {V}/{W}/Ab", ("IOSFODNN7", V, W)),
    ("JWT", f"got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{V}", ("eyJzdWIiOiIxIn0", V)),
    ("Google", f"key AIza{V}{W}abcdefg is restricted", (V, W)),
    ("npm_", f"//registry.example/: npm_{V}{W}abcd", (V, W)),
    ("dckr_pat_", f"docker login said dckr_pat_{V}-{W}", (V, W)),
    ("Vault", f"vault: hvs.{V}{W} expired", (V, W)),
    ("SendGrid", f"mail: SG.{V}abcdef.{W}{V}abcdefghijk", (V, W)),
    ("PyPI", f"uploading with pypi-AgEIcHlwaS5vcmc{V}{W}", (V, W)),
    ("Slack webhook", f"POST https://hooks.slack.com/services/T00000000/B00000000/{V}{W}", (V, W)),
    ("Discord webhook", f"curl https://discord.com/api/webhooks/123456789012345678/{V}{W}-x", (V, W)),
    ("signed address, Azure", f"GET https://a.blob.example/w?sv=2024&sig={V}%2B{W}%3D&se=2026", (V, W)),
    ("signed address, S3", f"GET https://b.s3.example/w?X-Amz-Date=2026&X-Amz-Signature={V}{W}", (V, W)),
    ("DB_PASS", f"DB_PASS={V}", (V,)),
    ("MYSQL_PWD", f"'MYSQL_PWD': '{V}'", (V,)),
    ("AWS, temporary", f"role key ASIA{V.upper()} was used", (V.upper(),)),
    ("Stripe", f"charge with sk_live_{V}{W}", (V, W)),
    ("Groq", f"key gsk_{V}{W}", (V, W)),
    ("age", f"AGE-SECRET-KEY-1{V}{W}".upper(), (V.upper(), W.upper())),
    ("GITHUB_PAT", f"GITHUB_PAT={V}", (V,)),
    ("ENCRYPTION_KEY", f"export ENCRYPTION_KEY='{V}'", (V,)),
    # known values
    ("known", f"the server compared {KEY} with {HUB}", (KEY, HUB)),
    ("known, another case", f"normalised to {KEY.lower()} and {HUB.upper()}", (KEY.lower(), HUB.upper())),
    ("known, base64", f"blob {b64('a:' + KEY)} {b64(HUB)}", (b64("a:" + KEY)[4:-4], b64(HUB)[:-4])),
    ("known, percent-encoded", f"path {quote(KEY, safe='')} {quote(KEY, safe='').lower()}", ("%2FkV", "%2fkv")),
    ("known, wrapped", f"the key is {KEY[:9]}\n    {KEY[9:]} and\n{HUB[:5]}\\\n{HUB[5:]}", (KEY[9:], HUB[5:])),
    ("known, hexadecimal", f"0x{KEY.encode().hex()} {HUB.encode().hex().upper()}", (KEY.encode().hex()[4:],)),
]

PASSING = {
    "YAML, block": "no log and no document of a bundle is YAML; its inventory and playbook are JSON there",
    "curl -u": "`docker run -u 1000:1000` looks the same",
    "sshpass -p": "`docker run -p 8000:8000` looks the same, and `ssh -p 22`",
}

GOLDEN = Path(__file__).parents[2] / "golden"
HELPS = {
    "digest, commit, container ID or hash": r"(?<![0-9a-fA-F-])(?=\d*[a-f])[0-9a-f]{12,64}(?![0-9a-fA-F:-])",
    "fingerprint": r"SHA256:[A-Za-z0-9+/]{43}",
    "version": r"(?<![\w.])v?\d+\.\d+(?:\.\d+)*(?:(?:rc|a|b|\.post|\.dev|\+)\w+)*",
    "address": r"\d+\.\d+\.\d+\.\d+(?::\d+)?",
    "GID": r"(?:0{4}:){5}ffff:[0-9a-f]{4}:[0-9a-f]{4}",
    "maker of a MAC": r"(?i)(?<![0-9a-f:])(?:[0-9a-f]{2}:){3}(?=(?:[0-9a-fx]{2}:){2})",
    "image or model": r"[\w.-]+/[\w.-]+(?::[\w.-]+)?",
    "variable that is no secret": r"\b(?:NCCL|VLLM|RAY|UCX|GLOO)_[A-Z_]+=[^\s'\"]+",
}
SAID = f"""\
Status: Downloaded newer image for ghcr.io/spark/vllm@sha256:{"5e" * 32}
container {"0c1d" * 16} of plan {"ab12" * 16} exited; commit {"4f" * 20}, vllm 0.32.1rc2.dev7+g{"c0ffee12"}
GET /v1/models HTTP/1.1 from 192.168.177.12:43210; ED25519 key fingerprint is SHA256:{"Ab3+/9xYz0" * 4}Abc.
"""


def test_at_most_eight_forms_of_secrets_are_not_redacted():
    scrubber = Scrubber([KEY, HUB])
    passed = {name for name, text, secrets in FORMS if any(secret in scrubber.text(text) for secret in secrets)}
    assert passed == set(PASSING)
    assert (len(FORMS), len({name for name, *_ in FORMS})) == (78, 78)
    assert len(PASSING) <= 8


def test_useful_values_are_not_redacted():
    scrubber = Scrubber([KEY, HUB])
    files = [path for kind in ("logs", "facts", "plan") for path in sorted((GOLDEN / kind).rglob("*.*"))]
    seen: set[str] = set()
    for text in [SAID, *(path.read_text() for path in files)]:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        left = scrubber.text(text)
        for kind, pattern in HELPS.items():
            before = Counter(re.findall(pattern, plain))
            seen |= {kind} if before else set()
            assert not before - Counter(re.findall(pattern, left)), kind
    assert seen == set(HELPS)
