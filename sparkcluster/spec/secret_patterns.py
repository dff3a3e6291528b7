"""What looks like a secret: by the name of what holds it, or by its form.

One definition for messages, the checks of a playbook, imported recipes and support bundles.
"""

from __future__ import annotations

import re

_WORDS = "TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|(?:API|ACCESS|SECRET|PRIVATE)[_.-]?KEY"
_NAME = rf"[A-Za-z0-9_.-]{{0,40}}(?:{_WORDS})"
_WHOLE_NAME = re.compile(rf"(?i){_NAME}S?")
_PART_OF_NAME = re.compile(rf"(?i)(^|[._-])(?:(?:{_WORDS})S?|KEY)([._-]|$)")
# Names that end in such a word and hold a number of tokens.
_COUNT = re.compile(
    r"(?i)(^|[_.-])(?:(?:max|num|batched|special|prompt|completion)(?:[_-].{0,40})?[_-]?tokens|first[_-]?tokens?)$"
)

# One that is cut off ends with its last line of base64.
_PRIVATE_KEY = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?:(?!-----BEGIN)[\s\S]){0,8192}?-----END [A-Z ]*PRIVATE KEY-----"
    r"|[^\n]*(?:\n[A-Za-z0-9+/=]{16,}$)*)"
)
# What stays before a secret, and the secret.
_FORMS = (
    ("", _PRIVATE_KEY),
    ("", r"\bhf_[A-Za-z0-9_]{6,}"),
    ("", r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{8,}"),
    ("", r"\b(?:nvapi-|gh[a-z]_|github_pat_|glpat-|xox[abprs]-|AKIA)[A-Za-z0-9_-]{8,}"),
    ("", r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"),
    (r"(?i:\bbearer\s+)", r"[A-Za-z0-9._~+/=-]+"),
    (r"(?i:\bbasic\s+)", r"[A-Za-z0-9._~+/=-]{6,}"),
    (r"(?i:\bauthorization[\"']?\s*[:=]\s*[\"']?(?!bearer|basic))", r"[^\s\"',]+"),
    (r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@\"']{0,200}:", r"[^\s/@\"']+(?=@)"),
    (
        rf"(?i:(?<![A-Za-z0-9])(?:--)?{_NAME}[\"']?\s{{0,8}}(?:=|:\s{{0,8}}|\s(?=[\"']))[\"']?)",
        r"(?!\s|\$|\(removed\))[^\s\"',}]+",
    ),
    (r"(?i:--(?:[a-z0-9-]{1,60}-key|hf-token|token)[ \t=]+)", r"(?!\$)\S+"),
)
# Compiled at first use (by ``re``): most commands see no such text.
_PATTERNS = tuple(rf"(?m)(?P<before>{before})(?:{secret})" for before, secret in _FORMS)


def names_secret(name: str) -> bool:
    """Whether a variable, key or argument of that name usually holds a secret."""
    return bool(_WHOLE_NAME.fullmatch(name)) and not _COUNT.search(name)


def mentions_secret(name: str) -> bool:
    """Whether a word of a name suggests a secret, so that its value is not shown: ``token`` in ``token_file``."""
    return names_secret(name) or bool(_PART_OF_NAME.search(name) and not _COUNT.search(name))


def holds_secret(text: str) -> bool:
    """Whether something in ``text`` has the form of a secret."""
    return any(re.search(pattern, text) for pattern in _PATTERNS)


def without_secrets(text: str, mark: str) -> str:
    """``text`` with ``mark`` in place of everything that has the form of a secret."""
    for pattern in _PATTERNS:
        text = re.sub(pattern, rf"\g<before>{mark}", text)
    return text
