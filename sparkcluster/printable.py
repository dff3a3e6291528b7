"""Text of nodes, engines and files without what controls a terminal or is not seen."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any
from unicodedata import category, name

# Controls, format characters (bidirectional ones among them), surrogates, separators of lines and of paragraphs.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Letters and marks that are not drawn either (Default_Ignorable_Code_Point of Unicode), and a blank pattern of dots.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)

LINES = "\t\n\u200c\u200d\u2800\ufe0e\ufe0f"
"""What prose of several lines may have: drawings of dots, joiners, which are part of Persian and of Indic scripts, and
the selectors of how an emoji is drawn."""

# Soft hyphens, tags, which make a flag of an emoji or hide a text, and selectors of glyphs: left out of prose.
_INVISIBLE = re.compile("[\u00ad\U000e0000-\U000e0fff]")

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def hidden_at(text: str, keep: str = "\t") -> int | None:
    """Where the first character of ``text`` is that is hidden and not in ``keep``."""
    places = (found.start() for found in re.finditer(r"[^ -~]", text))
    return next((at for at in places if _hidden(text[at]) and text[at] not in keep), None)


def _hidden(char: str) -> bool:
    return category(char) in _HIDDEN or _UNSEEN.match(char) is not None


def named(char: str) -> str:
    """Code point and name of a character."""
    return f"U+{ord(char):04X} {name(char, 'control character')}"


def clean(text: str, keep: str = "\t") -> str:
    """``text`` with `�` for every hidden character that is not in ``keep``, and without terminal colours.

    Prose, which keeps line ends, is without soft hyphens and tags as well.
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
    """``document`` as JSON in which hidden characters are escaped, and a number that is not finite is null."""
    finite = json.loads(json.dumps(document), parse_constant=lambda _: None)
    text = json.dumps(finite, indent=indent, ensure_ascii=False)
    return re.sub(
        r"[^\n -~]", lambda found: found[0] if hidden_at(found[0], "") is None else json.dumps(found[0])[1:-1], text
    )


def word(text: object) -> str:
    """``text`` as one word of a shell line; a ``~/`` at its start is left to the shell."""
    home, rest = ("~/", str(text)[2:]) if str(text).startswith("~/") else ("", str(text))
    quoted = shlex.quote(rest)
    if quoted == rest:
        return home + rest
    # what is looked for in a remedy does not occur in what is quoted: for a shell, two quotes are nothing
    return home + re.sub("; or |INVENTORY", lambda found: f"{found[0][0]}''{found[0][1:]}", quoted)


def shell(command: str, *words: object) -> str:
    """A line to paste: ``command``, which is a constant, and ``words``, each as one. Nothing else quotes for that."""
    return " ".join([command, *map(word, words)])
