"""Text of nodes, engines and files without what controls a terminal or is not seen."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any
from unicodedata import category, name

# Controls, format characters (bidirectional ones among them), surrogates, separators of lines and of paragraphs.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"

LINES = f"\t\n{_JOINERS}"
"""What prose of several lines may have; the joiners are part of Persian, of Indic scripts and of emoji."""

# Soft hyphens, and tags, which make a flag of an emoji or hide a text: left out of prose.
_INVISIBLE = re.compile("[\u00ad\U000e0020-\U000e007f]")

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def hidden_at(text: str, keep: str = "\t") -> int | None:
    """Where the first character of ``text`` is that is hidden and not in ``keep``."""
    places = (found.start() for found in re.finditer(r"[^ -~]", text))
    return next((at for at in places if category(text[at]) in _HIDDEN and text[at] not in keep), None)


def named(char: str) -> str:
    """Code point and name of a character."""
    return f"U+{ord(char):04X} {name(char, 'control character')}"


def clean(text: str, keep: str = "\t") -> str:
    """``text`` with `�` for every hidden character that is not in ``keep``, and without terminal colours.

    Prose, which keeps line ends, is without soft hyphens and tags as well.
    """
    if text.isprintable():
        return text
    if "\n" in keep:
        text = _INVISIBLE.sub("", text.replace("\r\n", "\n"))
    return "".join("�" if category(char) in _HIDDEN and char not in keep else char for char in COLOURS.sub("", text))


def as_json(document: Any, *, indent: int | None = None) -> str:
    """``document`` as JSON in which hidden characters are escaped."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return re.sub(
        r"[^\n -~]", lambda found: found[0] if hidden_at(found[0], "") is None else json.dumps(found[0])[1:-1], text
    )


def word(text: object) -> str:
    """``text`` as one word of a shell line; a ``~/`` at its start is left to the shell."""
    home, rest = ("~/", str(text)[2:]) if str(text).startswith("~/") else ("", str(text))
    return home + shlex.quote(rest)


def shell(command: str, *words: object) -> str:
    """A line to paste: ``command``, which is a constant, and ``words``, each as one. Nothing else quotes for that."""
    return " ".join([command, *map(word, words)])
