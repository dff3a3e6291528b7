"""Words with parts that the text does not tell: a part is its name between two characters that no text has."""

from __future__ import annotations

import re

from sparkcluster.spec.secret_patterns import without_secrets

OPEN, CLOSE = "\ue000", "\ue001"
# Around the name of a `<placeholder>` until the word it is in is expanded.
PLACE_OPEN, PLACE_CLOSE, PLACE_SPACE = "\ue002", "\ue003", "\ue004"
MARKS = frozenset({OPEN, CLOSE, PLACE_OPEN, PLACE_CLOSE, PLACE_SPACE})

_UNKNOWN = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
# `YOUR_MODEL`, as guides write what a reader has to fill in
_FILL_IN = re.compile(r"\bYOUR_[A-Z][A-Z0-9_]*\b")


_HIDDEN = re.compile(f"{OPEN}=([0-9a-f]*){CLOSE}")


def hidden(text: str) -> str:
    """``text`` with the names in its marks written so that no shell reads them as its own signs."""
    return _UNKNOWN.sub(lambda found: mark(f"={found[1].encode().hex()}"), text)


def uncovered(text: str) -> str:
    """``hidden`` undone."""
    return _HIDDEN.sub(lambda found: mark(bytes.fromhex(found[1]).decode()), text)


def mark(name: str) -> str:
    """The part of a word that ``name`` would give."""
    return f"{OPEN}{name}{CLOSE}"


def is_known(text: str) -> bool:
    """Whether the text tells all of ``text``."""
    return OPEN not in text


def unknown(word: str) -> list[str]:
    """Names of the variables and placeholders in ``word`` whose value the text does not tell."""
    return [name.strip("()") for name in _UNKNOWN.findall(word)]


def bare_name(name: str) -> str:
    """The name of a placeholder without its brackets."""
    return name.strip("<>\u2039\u203a")


def is_placeholder(name: str) -> bool:
    """Whether an unknown name is one that the text asks its reader to fill in."""
    return (name[:1], name[-1:]) in {("<", ">"), ("\u2039", "\u203a")} or bool(_FILL_IN.fullmatch(name))


def plain(word: str) -> str:
    """``word`` as it would be typed: unknown variables as ``$NAME``, placeholders as they were written."""
    whole = re.compile(r"[<>]\(")  # `<(…)` has no dollar sign
    return _UNKNOWN.sub(
        lambda found: found[1] if is_placeholder(found[1]) or whole.match(found[1]) else f"${found[1]}", word
    )


def shown(text: str) -> str:
    """Text of the recipe for a note: as it would be typed, without secrets."""
    return without_secrets(plain(text), "…")


def names_home(word: str) -> bool:
    """Whether a word has ``~`` where a home directory is meant."""
    return re.search(r"(?<![^=:,])~(?=/|$)", word) is not None


def is_argument(name: str) -> bool:
    """Whether ``name`` is the number of an argument of a script or function; ``$0`` is none."""
    return re.fullmatch(r"0*[1-9][0-9]{0,5}", name) is not None


def assignment(word: str) -> tuple[str, str] | None:
    """Name and value of ``NAME=value``."""
    found = _ASSIGNMENT.fullmatch(word)
    return (found[1], found[2]) if found else None


# `<model>` and `<your model>`, in angle brackets of either kind: what guides leave to the reader. A redirection has a
# space or nothing behind its name, and no `>`.
_PLACE = re.compile(
    "(?<![<>&\\d])([<\u2039])([A-Za-z][\\w./:|\u2026+-]*(?: [\\w./:|\u2026+-]+){0,4})[>\u203a]"
    "(?=[\\s\"'\\\\:/,;)}\\]|=.-]|$)"
)
_OURS = re.compile(f"{PLACE_OPEN}([^{PLACE_OPEN}{PLACE_CLOSE}]*){PLACE_CLOSE}")
_YOURS = re.compile(r"your|my[-_ ]|…|\.\.\.", re.IGNORECASE)


def with_places(text: str) -> str:
    """``text`` with the brackets of placeholders replaced, since a shell would read them as redirections."""
    return _PLACE.sub(lambda found: f"{PLACE_OPEN}{found[2].replace(' ', PLACE_SPACE)}{PLACE_CLOSE}", text)


def with_brackets(text: str) -> str:
    """``with_places`` undone, and names in marks as they are."""
    text = uncovered(text)
    return _OURS.sub(lambda found: f"<{found[1].replace(PLACE_SPACE, ' ')}>", text)


def filled(text: str, *, quoted: bool) -> str:
    """A literal with its placeholders marked as unknown.

    In quotes only ``<your …>`` is a placeholder: `<think>` there is text for the engine.
    """

    def place(found: re.Match[str]) -> str:
        written = with_brackets(found[0])
        return written if quoted and not _YOURS.search(found[1]) else mark(written)

    return _FILL_IN.sub(lambda found: mark(found[0]), uncovered(_OURS.sub(place, text)))
