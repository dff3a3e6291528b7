"""Recognize secrets by the name of their variable or key, or by their form.

Shared by messages, checks of playbooks, imported recipes and support bundles.
"""

from __future__ import annotations

import re

_WORDS = (
    "TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|(?:API|ACCESS|SECRET|PRIVATE)[_.-]?KEYS?"
    "|(?-i:[A-Z]_(?:PASS|PWD|PAT|AUTH|KEY)(?![A-Za-z0-9_]))"
)
_WHOLE_NAME = re.compile(rf"(?i)[A-Za-z0-9_.-]{{0,40}}(?:{_WORDS})S?")
# Names that end in such a word but count tokens.
_COUNT = re.compile(
    r"(?i)(^|[_.-])(?:(?:max|num|batched|special|prompt|completion)(?:[_-].{0,40})?[_-]?tokens|first[_-]?tokens?)$"
)

# A truncated key ends with its last line of base64.
_PRIVATE_KEY = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?:(?!-----BEGIN)[\s\S]){0,8192}?-----END [A-Z ]*PRIVATE KEY-----"
    r"|[^\n]*(?:\n[A-Za-z0-9+/=]{16,}$)*)"
)
# A quote, possibly escaped repeatedly, or encoded for HTML or URLs.
_QUOTE = r"""(?:\\{0,8}["'`]|&quot;|%22)"""
# Text between a name and its value, also for `name: SERVICE_TOKEN` followed by `value: …`.
_IS = (
    rf"""{_QUOTE}?[ \t]{{0,8}}(?:,?\s{{0,40}}{_QUOTE}?value{_QUOTE}?:|[=:>]|%3D"""
    r"""|,(?=\s?b?(?:'[^'\n]{0,200}'|"[^"\n]{0,200}")(?!:))|\s(?=["']))[ \t]{0,8}"""
)
_VALUE = (
    rf"(?:\[[^\]]{{0,400}}\]|b?(?P<quote>{_QUOTE}).{{0,200}}?(?P=quote)|(?:\s{{1,40}}-\s\S+)+"
    r"|(?!\s|\$|\(removed\)|(?:None|null|true|false|\d+\.\d+)(?![\w.-]))[^\s\"',}]+)"
)
# Google, npm, Docker Hub, Vault, SendGrid, PyPI, AWS (temporary), Stripe, Groq, Replicate, age
_BEGINS = (
    r"AIza(?=[\w-]{30})|npm_(?=[A-Za-z0-9]{30})|dckr_pat_|hvs\.|SG\.[\w-]{16,32}\.|pypi-AgE|ya29\.|ASIA(?=[A-Z0-9]{12})"
    r"|[rs]k_(?:live|test)_|gsk_(?=[A-Za-z0-9]{20})|r8_(?=[A-Za-z0-9]{20})|AGE-SECRET-KEY-"
)
# Text to keep before a secret, and the secret.
_FORMS = (
    ("", _PRIVATE_KEY),
    ("", r"\b(?:hf_[A-Za-z0-9]{6}|(?:(?:[spr]k|nvapi|glpat|xox[abprs])-|gh[a-z]_|github_pat_|AKIA)[\w-]{8})[\w-]*"),
    ("", rf"\b(?:{_BEGINS})[\w-]{{12,}}"),
    # webhooks of Slack and Discord; signatures in URLs
    (r"\bhooks\.slack\.com/\w{1,20}/|\bdiscord(?:app)?\.com/api/webhooks/", r"[\w/-]+"),
    (r"(?i:[?&](?:sig|[\w-]{0,20}signature)=)", r"[^\s&\"'<>]+"),
    ("", r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"),
    (r"(?i:\bbearer\s+|\bbasic\s+(?=\S{6}))", r"[A-Za-z0-9._~+/=-]+"),
    (rf"(?i:\b(?:authorization|cookie){_IS})", r"b?\\{0,8}[\"']?[^\n\"']+"),
    (r"(?i:https?://|://[^\s/:@\"']{0,200}:)", r"[^\s/\"']+(?=@)"),
    (rf"(?i:(?:{_WORDS}|(?<=[\"'])auth){_IS})", _VALUE),
    # a flag with one or more values
    (
        rf"(?i:(?<!-)--(?!secret\b)[\w.-]{{0,40}}?(?:{_WORDS}|-key)[\"']?[ \t=,]+[\"']?)",
        r"(?!\$)[^\s\"']+(?:[\s\"',]+(?!-)(?=[^\s\"']*\d)[\w+/=.-]{8,})*",
    ),
    (r"\blogin \S+ password ", r"\S+"),
)
# Compiled by ``re`` at first use, since most commands do not need them.
PATTERNS = tuple(rf"(?m)(?P<before>{before})(?:{secret})" for before, secret in _FORMS)


def names_secret(name: str) -> bool:
    """Whether a variable, key or argument of this name usually contains a secret."""
    return bool(_WHOLE_NAME.fullmatch(name)) and not _COUNT.search(name)


def mentions_secret(name: str) -> bool:
    """Whether a part of a name suggests a secret, such as ``token`` in ``token_file``."""
    words = re.split("[._-]", name.lower())
    return not _COUNT.search(name) and ("key" in words or any(map(names_secret, words)))


def holds_secret(text: str) -> bool:
    """Whether ``text`` contains the form of a secret."""
    return any(re.search(pattern, text) for pattern in PATTERNS)


def without_secrets(text: str, mark: str) -> str:
    """``text`` with ``mark`` in place of everything that looks like a secret."""
    for pattern in PATTERNS:
        text = re.sub(pattern, rf"\g<before>{mark}", text)
    return text
