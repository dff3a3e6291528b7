"""Text with unknown parts: each contains the expression that would give its value, between two reserved characters."""

from __future__ import annotations

import re

from sparkcluster.spec.secret_patterns import without_secrets

OPEN, CLOSE = "\ue000", "\ue001"
# Shell operators in unknown parts, and their replacements there.
_HIDDEN = {ord(sign): chr(0xE002 + at) for at, sign in enumerate(" !\"#$%&'()*,:;<=>?@[\\]^`{|}~\n\t")}
_WRITTEN = {ord(hidden): chr(sign) for sign, hidden in _HIDDEN.items()}
SIGNS = re.compile("[\ue000-\ue0ff]")
"""Reserved characters, which input must not contain."""

_UNKNOWN = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")


def mark(name: str) -> str:
    """An unknown part for the variable ``name``."""
    return f"{OPEN}{name}{CLOSE}"


def lost(written: str) -> str:
    """An unknown part for an unsupported expression, such as ``$(awk …)``."""
    return mark(written.translate(_HIDDEN))


def in_quotes(text: str) -> str:
    """A quoted literal, in which only ``<your …>`` is a placeholder; ``<think>`` is text for the engine."""

    def restored(found: re.Match[str]) -> str:
        name = _name(found[1])
        is_text = name[:1] == "<" and not re.search(r"your|my[-_ ]|…|\.\.\.", name, re.IGNORECASE)
        return name if is_text else found[0]

    return _UNKNOWN.sub(restored, text)


def unknown(text: str) -> list[str]:
    """The unknown parts of ``text``: names of variables, placeholders, expressions such as ``$(awk …)``."""
    return [_name(found) for found in _UNKNOWN.findall(text)]


def _name(found: str) -> str:
    return found.translate(_WRITTEN)


def definable(name: str) -> str | None:
    """Name of an unknown part for ``--define``; None for an expression."""
    return name.strip("<>\u2039\u203a") if re.match(r"[\w<\u2039%]", name) else None


def plain(text: str) -> str:
    """``text`` as typed: unknown variables as ``$NAME``, placeholders as written."""

    def typed(found: re.Match[str]) -> str:
        name = _name(found[1])
        return f"${name}" if name[:1].isalnum() and not name.startswith("YOUR_") else name

    return _UNKNOWN.sub(typed, text)


def shown(text: str, limit: int = 200) -> str:
    """``text`` for a message: on one line, as typed, without secrets."""
    line = " ".join(without_secrets(plain(text), "…").split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def names_home(word: str) -> bool:
    """Whether a word has ``~`` in the position of a home directory."""
    return re.search(r"(?<![^=:,])~(?=/|$)", word) is not None
