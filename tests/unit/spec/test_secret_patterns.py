"""What looks like a secret is defined once; messages, checks of playbooks, imports and bundles agree."""

from __future__ import annotations

import pytest

from sparkcluster.importer import convert
from sparkcluster.inspect.bundle import REMOVED, Scrubber
from sparkcluster.spec.messages import may_show
from sparkcluster.spec.secret_patterns import holds_secret, mentions_secret, names_secret, without_secrets

FORMS = [
    "hf_AbCdEfGhIj",
    "sk-proj-Q2hhbmdl",
    "nvapi-8sJd93kdLs",
    "ghp_16C7e42F292c",
    "ghx_16C7e42F292c",
    "github_pat_11ABCDEFG",
    "glpat-16C7e42F29",
    "xoxb-1234567890",
    "eyJhbGciOiJI.eyJzdWIiOiIx",
    "-----BEGIN RSA PRIVATE KEY-----",
    "Bearer abc",
    "Authorization: abc",
    "https://bob:hunter2@registry.example/",
    "HF_TOKEN=abc",
    "db_password: abc",
    "--api-key abc",
    "--x-key=abc",
]


@pytest.mark.parametrize("text", FORMS)
def test_a_form_is_known_to_all(text):
    assert holds_secret(text)
    assert not may_show((), text)
    changed = without_secrets(f"x {text} y", "…")
    assert Scrubber([]).text(f"x {text} y") == changed.replace("…", REMOVED)
    assert changed != f"x {text} y"
    assert not {"abc", "hunter2"} & set(changed.replace(":", " ").replace("=", " ").replace("@", " ").split())
    notes = convert(f"curl -d '{text}' http://x\nvllm serve org/m", "x.sh").notes
    assert not any(text in line for line in notes)


@pytest.mark.parametrize(
    "text", ["disk-cache-size", "hf_home", "basic", "--max-num-batched-tokens=8192", "--key-file=$K"]
)
def test_an_ordinary_word_is_not_a_secret(text):
    assert not holds_secret(text)


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN", "TOKEN", "token", "API_KEY", "apikey", "api-key", "AWS_SECRET_ACCESS_KEY", "SECRET_KEY", "MY_SECRET",
        "PRIVATE_KEY", "db.password", "PASSWD", "SSH_PASSPHRASE", "CREDENTIALS", "hf-token", "HF_TOKENS",
        "MAXMIND_TOKEN", "SPECIAL_TOKEN", "ENUM_TOKEN", "PROMPTLAYER_API_TOKEN", "NUM_API_TOKEN", "FIRSTNAME_TOKEN",
    ],
)  # fmt: skip
def test_a_name_is_known_to_all(name):
    assert names_secret(name)
    assert mentions_secret(name)
    assert not may_show((name,), "abc")


@pytest.mark.parametrize(
    "name", ["max_tokens", "max-num-batched-tokens", "num_speculative_tokens", "tokenizer", "rank"]
)
def test_a_setting_that_sounds_like_one_is_shown(name):
    assert not names_secret(name)
    assert may_show((name,), 5)


@pytest.mark.parametrize("name", ["key", "api.key", "key_file", "token-file", "env", "setup", "command"])
def test_the_value_of_what_may_hold_one_is_not_shown(name):
    assert not may_show((name,), "abc")
