"""Text from nodes, engines and files, without control characters and invisible characters."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any
from unicodedata import category, name

# Control and format characters (including bidirectional ones), surrogates, line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Invisible letters and marks (Default_Ignorable_Code_Point of Unicode), and the blank Braille pattern.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)

LINES = "\t\n\u200c\u200d\u2800\ufe0e\ufe0f"
"""Kept in multi-line prose: the blank Braille pattern, joiners (used in Persian and Indic scripts) and the variation
selectors that choose how an emoji is drawn."""

# Soft hyphens, tags (which make flag emojis or hide text) and variation selectors: removed from prose.
_INVISIBLE = re.compile("[\u00ad\U000e0000-\U000e0fff]")

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def hidden_at(text: str, keep: str = "\t") -> int | None:
    """Index of the first hidden character of ``text`` that is not in ``keep``."""
    places = (found.start() for found in re.finditer(r"[^ -~]", text))
    return next((at for at in places if _hidden(text[at]) and text[at] not in keep), None)


def _hidden(char: str) -> bool:
    return category(char) in _HIDDEN or _UNSEEN.match(char) is not None


def named(char: str) -> str:
    """Code point and name of a character."""
    return f"U+{ord(char):04X} {name(char, 'control character')}"


def clean(text: str, keep: str = "\t") -> str:
    """``text`` with `�` for every hidden character that is not in ``keep``, and without terminal colours.

    If line ends are kept (prose), soft hyphens and tags are removed as well.
    """
    if text.isprintable() and (text.isascii() or not _UNSEEN.search(text)):
        return text
    if "\n" in keep:
        text = _INVISIBLE.sub("", text.replace("\r\n", "\n"))
    return "".join("�" if _hidden(char) and char not in keep else char for char in COLOURS.sub("", text))


def one_line(text: str) -> str:
    """``text`` as one line of printable characters."""
    return clean(text if text.isprintable() else " ".join(text.splitlines()))


def as_json(document: Any, *, indent: int | None = None) -> str:
    """``document`` as JSON; hidden characters are escaped, and NaN and infinity become null."""
    finite = json.loads(json.dumps(document), parse_constant=lambda _: None)
    text = json.dumps(finite, indent=indent, ensure_ascii=False)
    return re.sub(
        r"[^\n -~]", lambda found: found[0] if hidden_at(found[0], "") is None else json.dumps(found[0])[1:-1], text
    )


def word(text: object) -> str:
    """``text`` quoted as one word of a shell line; a leading ``~/`` is left for the shell to expand."""
    home, rest = ("~/", str(text)[2:]) if str(text).startswith("~/") else ("", str(text))
    quoted = shlex.quote(rest)
    if quoted == rest:
        return home + rest
    # Remedies are searched for "; or " and INVENTORY, so quoted text must not have them; '' is nothing to a shell.
    return home + re.sub("; or |INVENTORY", lambda found: f"{found[0][0]}''{found[0][1:]}", quoted)


def shell(command: str, *words: object) -> str:
    """A line to paste: ``command``, a constant, and ``words``, each quoted. Use nothing else to quote such lines."""
    return " ".join([command, *map(word, words)])
