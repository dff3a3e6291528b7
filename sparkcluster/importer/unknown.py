"""Text with parts that are not known: a part is what would give it, between two characters that no text has."""

from __future__ import annotations

import re

from sparkcluster.spec.secret_patterns import without_secrets

OPEN, CLOSE = "\ue000", "\ue001"
# In front of the name of a program whose output counts, and of a placeholder; what a shell reads in either as a sign.
_OUTPUT, _PLACE = "\ue002", "\ue003"
_SIGNS = {ord(sign): chr(0xE004 + at) for at, sign in enumerate(" <>|")}
_WRITTEN = {ord(hidden): chr(sign) for sign, hidden in _SIGNS.items()}
MARKS = frozenset({OPEN, CLOSE, _OUTPUT, _PLACE, *_SIGNS.values()})

_UNKNOWN = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")
# `<model>` and `<your model>`, what guides leave to the reader. A redirection has a blank or nothing behind its name.
_PLACEHOLDER = re.compile(
    "(?<![<>&\\d])[<\u2039][A-Za-z][\\w./:|\u2026+-]*(?: [\\w./:|\u2026+-]+){0,4}[>\u203a]"
    "(?=[\\s\"'\\\\:/,;)}\\]|=.-]|$)"
)
_YOURS = re.compile(r"(?<![\w${])YOUR_[A-Z][A-Z0-9_]*\b(?!=)")


def mark(name: str) -> str:
    """The part of a text that the variable ``name`` would give."""
    return f"{OPEN}{name}{CLOSE}"


def output_of(program: str) -> str:
    """The part of a text that a program would print."""
    return mark(_OUTPUT + re.sub(r"[^\w./+-]+", "", program))


def with_places(text: str) -> str:
    """``text`` with its placeholders as unknown parts, since a shell would read ``<model>`` as redirections."""
    text = _PLACEHOLDER.sub(lambda found: mark(_PLACE + found[0].translate(_SIGNS)), text)
    return _YOURS.sub(lambda found: mark(_PLACE + found[0]), text)


def in_quotes(text: str) -> str:
    """A literal in quotes, where only ``<your …>`` is a placeholder: ``<think>`` there is text for the engine."""

    def restored(found: re.Match[str]) -> str:
        name = _name(found[1])
        is_text = name[:1] == "<" and not re.search(r"your|my[-_ ]|…|\.\.\.", name, re.IGNORECASE)
        return name if is_text else found[0]

    return _UNKNOWN.sub(restored, text)


def unknown(text: str) -> list[str]:
    """What would give the unknown parts of ``text``: names of variables and placeholders, programs as ``$(awk)``."""
    return [_name(found) for found in _UNKNOWN.findall(text)]


def _name(found: str) -> str:
    name = found.lstrip(_PLACE + _OUTPUT).translate(_WRITTEN)
    return f"$({name} …)" if found.startswith(_OUTPUT) else name


def definable(name: str) -> str | None:
    """What ``--define`` calls an unknown part; None for the output of a program."""
    return None if name.startswith("$(") else name.strip("<>\u2039\u203a")


def plain(text: str) -> str:
    """``text`` as it would be typed: unknown variables as ``$NAME``, placeholders as they were written."""
    return _UNKNOWN.sub(lambda found: ("$" if found[1][:1].isalnum() else "") + _name(found[1]), text)


def shown(text: str, limit: int = 200) -> str:
    """``text`` for a message: on one line, as it would be typed, without secrets."""
    line = " ".join(without_secrets(plain(text), "…").split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def names_home(word: str) -> bool:
    """Whether a word has ``~`` where a home directory is meant."""
    return re.search(r"(?<![^=:,])~(?=/|$)", word) is not None
