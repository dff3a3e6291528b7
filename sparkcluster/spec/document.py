"""YAML with the position of every value, without the surprises of YAML 1.1, and with limits on size and depth.

The document is built from PyYAML's events instead of its composer, which recurses in C without a limit, keeps the last
of duplicate keys, and parses ``22:22`` as 1342. Keys are always text, and values on which YAML parsers disagree are
refused.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import yaml

from sparkcluster.errors import Problem, SpecError
from sparkcluster.printable import LINES, hidden_at, named

MAX_VALUES = 20_000
MAX_DEPTH = 32
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels, aliases included"
_TOO_MANY = f"more than {MAX_VALUES} values, or too much text, aliases included"

KeyPath = tuple[str | int, ...]

_WORDS = (("null", None), ("yes", True), ("true", True), ("on", True), ("no", False), ("false", False), ("off", False))
_CONSTANTS = {each: value for word, value in _WORDS for each in (word, word.title(), word.upper())}
_CONSTANTS |= {"": None, "~": None}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,2})?")
_UNCLEAR = (
    (r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?", "some YAML parsers read it as a number in base 60"),
    (r"[-+]?0([0-9_]+|o[0-7_]+|b[01_]+|x[0-9a-fA-F_]+)", "YAML parsers disagree about numbers with a leading 0"),
    (r"[-+]?[0-9][0-9_]*_[0-9_.]*", "YAML parsers disagree about numbers with an underscore"),
    (r"[-+]?\.(inf|Inf|INF|nan|NaN|NAN)", "it is not a finite number"),
    (r"[-+]?([0-9.]{19,}([eE][-+]?[0-9]+)?|[0-9.]+[eE][-+]?[0-9]{3,})", "the number is too large or too long"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Start of a value: line and column, from 1, and ``file`` if it differs from the document's.

    Line and column are 0 if ``file`` is a command-line flag.
    """

    line: int = 1
    column: int = 1
    file: str | None = None


@dataclasses.dataclass(slots=True)
class Document:
    """A YAML file: its data as dicts, lists and scalars, with their places.

    Attributes:
        file: name of the file in messages.
        data: content of the file.
        values: place of every value by its path.
        keys: place of every key by its path.
        written: original text of unquoted scalars, by path; empty in merged documents.
        problems: problems of the file that do not depend on its schema.
    """

    file: str
    data: Any = None
    values: dict[KeyPath, Place] = dataclasses.field(default_factory=dict)
    keys: dict[KeyPath, Place] = dataclasses.field(default_factory=dict)
    written: dict[KeyPath, str] = dataclasses.field(default_factory=dict)
    problems: list[Problem] = dataclasses.field(default_factory=list)

    def problem(self, path: KeyPath, message: str, hint: str | None = None, *, key: bool = False) -> Problem:
        """A problem at the value or key at ``path`` or, if it is missing, at its section."""
        place = self.keys.get(path) if key else self.values.get(path)
        parent = path
        while place is None and parent:
            parent = parent[:-1]
            place = self.keys.get(parent) or self.values.get(parent)
        place = place or Place()
        return Problem(place.file or self.file, place.line, place.column, path_text(path), message, hint)


def path_text(path: KeyPath) -> str:
    """A path as text: ``nodes[1].ssh.port``."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            out += ("." if out else "") + (part if re.fullmatch(r"[\w-]{1,80}", part) else shown(part))
    return out


def shown(value: object, limit: int = 60) -> str:
    """A value on one line: strings quoted, shortened to ``limit``, control characters escaped."""
    text = f'"{value}"' if isinstance(value, str) else str(value)
    text = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def parse(text: str, file: str, *, merge_keys: bool = False) -> Document:
    """Parse YAML; ``file`` is its name in problems. With ``merge_keys``, ``<<`` is an ordinary key.

    Raises:
        SpecError: not YAML, or too large. Ambiguous values are reported in ``problems``.
    """
    document = Document(file)
    refuse_hidden(text, file)
    try:
        events = _events(document, text)
    except yaml.MarkedYAMLError as error:
        begin = error.context_mark
        where = f"{error.context} on line {begin.line + 1}: " if begin else ""
        hint = "on this line and above, indent with spaces, put a space after ':' and '-', and close quotes"
        raise _fatal(document, error.problem_mark, f"not valid YAML: {where}{error.problem}", hint) from None
    except yaml.YAMLError:
        raise _fatal(document, None, "has characters that YAML does not allow", "save the file as plain text") from None
    root = events[0] if events else None
    if root is None or (isinstance(root, yaml.ScalarEvent) and not root.style and _resolve(root.value) is None):
        raise _fatal(document, None, "the file is empty", "start from one of the examples in inventory/")
    if not isinstance(root, yaml.MappingStartEvent):
        hint = "begin with a key, such as nodes: or model:"
        raise _fatal(document, root.start_mark, "expected 'key: value' lines", hint)
    document.data = _Reader(document, events, merge_keys=merge_keys).value((), 0)
    return document


def parse_scalar(text: str, file: str, key: str) -> Document:
    """A document with the unquoted value ``text`` under ``key``; comments are not recognized.

    Invisible characters and ambiguous values are reported in ``problems``.
    """
    document = Document(file)
    document.data = {key: _unquoted(document, Place(), (key,), text)}
    return document


def refuse_hidden(text: str, file: str) -> None:
    """Raise a SpecError if ``text`` has invisible characters, even in comments: they can hide content."""
    at = hidden_at(text, f"{LINES}\r")
    if at is not None:
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        message, hint = f"unexpected character {named(text[at])}", "delete it, or save the file as plain text"
        raise SpecError([Problem(file, line, column, "", message, hint)])


def _fatal(document: Document, mark: Any, message: str, hint: str | None = None) -> SpecError:
    place = _place(mark) if mark else Place()
    return SpecError([*document.problems, Problem(document.file, place.line, place.column, "", message, hint)])


def _place(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1)


def _events(document: Document, text: str) -> list[Any]:
    """Start and end events of all nodes in ``text``; limits are enforced before anything recurses."""
    events: list[Any] = []
    depth = 0
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        while loader.check_event():
            event = loader.get_event()
            if isinstance(event, yaml.DocumentStartEvent) and events:
                raise _fatal(document, event.start_mark, "a second document ('---')", "keep one document per file")
            if getattr(event, "tag", None) is not None:
                hint = "quote a value that begins with '!'"
                raise _fatal(document, event.start_mark, "tags ('!…') are not supported", hint)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise _fatal(document, event.start_mark, _TOO_DEEP)
            if len(events) > 3 * MAX_VALUES:  # keys, values and ends
                raise _fatal(document, event.start_mark, _TOO_MANY, "is this the right file?")
            if isinstance(event, (yaml.NodeEvent, yaml.CollectionEndEvent)):
                events.append(event)
    finally:
        loader.dispose()
    return events


class _Reader:
    """Turns events into data and places; ``at`` is the index of the next event."""

    def __init__(self, document: Document, events: list[Any], *, merge_keys: bool) -> None:
        self.document = document
        self.events = events
        self.merge_keys = merge_keys
        self.anchors: dict[str, int] = {}
        self.at = self.count = 0

    def value(self, path: KeyPath, depth: int) -> Any:
        """The data of the next node. An aliased node is read repeatedly and counts towards the limits each time."""
        node = self.events[self.at]
        place = self.document.values[path] = _place(node.start_mark)
        # A long text counts as several values.
        self.count += 1 + len(getattr(node, "value", "")) // 200
        if self.count > MAX_VALUES:
            raise _fatal(self.document, node.start_mark, _TOO_MANY, "is this the right file?")
        if depth > MAX_DEPTH:
            raise _fatal(self.document, node.start_mark, _TOO_DEEP)
        if isinstance(node, yaml.AliasEvent):
            if node.anchor not in self.anchors:
                message = f"undefined alias *{shown(node.anchor)[1:-1]}"
                raise _fatal(self.document, node.start_mark, message, "quote a value that begins with '*'")
            after, self.at = self.at + 1, self.anchors[node.anchor]
            out = self.value(path, depth + 1)
            self.at = after
            return out
        if node.anchor is not None:
            # Reading an aliased node must not replace a later anchor of the same name.
            self.anchors[node.anchor] = max(self.at, self.anchors.get(node.anchor, 0))
        self.at += 1
        if isinstance(node, yaml.ScalarEvent):
            return (_seen if node.style else _unquoted)(self.document, place, path, node.value)
        out = {} if isinstance(node, yaml.MappingStartEvent) else []
        while not isinstance(self.events[self.at], yaml.CollectionEndEvent):
            if isinstance(out, dict):
                self._entry(out, path, depth)
            else:
                out.append(self.value((*path, len(out)), depth + 1))
        self.at += 1
        return out

    def _entry(self, out: dict[str, Any], path: KeyPath, depth: int) -> None:
        """Read the next key and its value into ``out``; a refused key is skipped with its value."""
        key = self.events[self.at]
        name = ""
        if isinstance(key, yaml.ScalarEvent):
            name = key.value
            self.at += 1
        else:
            self.value((*path, name), depth + 1)
        here, place, hidden = (*path, name), _place(key.start_mark), hidden_at(name)
        if hidden is not None:
            _complain(self.document, place, path, f"a key contains {named(name[hidden])}")
        elif not name:
            _complain(self.document, place, path, "a key must be a scalar", "write 'key: value'")
        elif name == "<<" and not key.style and not self.merge_keys:
            _complain(self.document, place, path, "merge keys ('<<') are not supported", "write the keys out")
        elif name in out:
            first = self.document.keys[here].line
            _complain(self.document, place, here, f"duplicate key, first on line {first}", "keep one of them")
        else:
            self.document.keys[here] = place
            out[name] = self.value(here, depth + 1)
            return
        self.value((*path, ""), depth + 1)


def _complain(document: Document, place: Place, path: KeyPath, message: str, hint: str | None = None) -> None:
    document.problems.append(Problem(document.file, place.line, place.column, path_text(path), message, hint))


def _seen(document: Document, place: Place, path: KeyPath, text: str) -> str:
    """``text``, or an empty string and a problem if it has invisible characters."""
    hidden = hidden_at(text, LINES)
    if hidden is None:
        return text
    _complain(document, place, path, f"contains {named(text[hidden])}")
    return ""


def _unquoted(document: Document, place: Place, path: KeyPath, text: str) -> Any:
    """The value of an unquoted scalar; a problem if YAML parsers disagree."""
    if _seen(document, place, path, text) != text:
        return ""
    document.written[path] = text
    for pattern, why in _UNCLEAR:
        if re.fullmatch(pattern, text):
            # The value is not shown: it may be a numeric secret.
            hint = "quote it if it is a string, or write a plain decimal number"
            _complain(document, place, path, f"is ambiguous: {why}", hint)
            return text
    return _resolve(text)


def _resolve(text: str) -> Any:
    """The value of an unquoted scalar."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
