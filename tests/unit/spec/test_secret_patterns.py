"""Patterns of secrets are defined once; messages, checks of playbooks and bundles agree."""

from __future__ import annotations

import pytest

from sparkcluster.inspect.bundle import REMOVED, Scrubber
from sparkcluster.spec.messages import may_show
from sparkcluster.spec.secret_patterns import holds_secret, mentions_secret, names_secret, without_secrets


@pytest.mark.parametrize(
    "text", ["nvapi-8sJd93kdLs", "github_pat_11ABCDEFG", "https://bob:hunter2@registry.example/", "--x-key=abc"]
)
def test_a_secret_is_recognized_by_its_form(text):
    """tests/unit/inspect/test_secret_forms.py lists the forms."""
    assert holds_secret(text)
    assert not may_show((), text)
    changed = without_secrets(f"x {text} y", "…")
    assert Scrubber([]).text(f"x {text} y") == changed.replace("…", REMOVED)
    assert changed != f"x {text} y"


@pytest.mark.parametrize(
    "text",
    [
        "disk-cache-size",
        "hf_home",
        "basic",
        "--max-num-batched-tokens=8192",
        "--key-file=$K",
        "ssh://ann@spark",
        "--secret hf",
    ],
)
def test_an_ordinary_word_is_not_a_secret(text):
    assert not holds_secret(text)


def test_a_secret_is_recognized_by_its_name():
    for name in ("HF_TOKEN", "apikey", "AWS_SECRET_ACCESS_KEY", "db.password", "hf-token", "ENUM_TOKEN"):
        assert names_secret(name)
        assert mentions_secret(name)
        assert not may_show((name,), "abc")
    for name in ("max_tokens", "max-num-batched-tokens", "tokenizer", "rank"):
        assert not names_secret(name)
        assert may_show((name,), 5)


def test_a_value_that_may_contain_a_secret_is_not_shown():
    assert not [
        name for name in ("key", "api.key", "token-file", "env", "setup", "command") if may_show((name,), "abc")
    ]
