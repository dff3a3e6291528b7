"""YAML with the place of every value, without the surprises of YAML 1.1, and with limits on size and depth.

The document is built here from PyYAML's events rather than by its composer, which recurses in C as deep as the file
says, keeps the last of two equal keys, and turns ``22:22`` into 1342. Here keys are always text, and values on
which YAML parsers disagree are refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import yaml

from sparkcluster.errors import Problem, SpecError
from sparkcluster.printable import LINES, hidden_at, named

MAX_VALUES = 20_000
MAX_DEPTH = 32
MAX_CHARACTERS = 1 << 22
MAX_PROBLEMS = 50

KeyPath = tuple[str | int, ...]

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"yes|Yes|YES|true|True|TRUE|on|On|ON")
_FALSE = re.compile(r"no|No|NO|false|False|FALSE|off|Off|OFF")
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,2})?")
_UNCLEAR = (
    (r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?", "some YAML parsers read it as a number in base 60"),
    (r"[-+]?0([0-9_]+|o[0-7_]+|b[01_]+|x[0-9a-fA-F_]+)", "YAML parsers disagree about numbers with a leading 0"),
    (r"[-+]?[0-9][0-9_]*_[0-9_.]*", "YAML parsers disagree about numbers with an underscore"),
    (r"[-+]?\.(inf|Inf|INF|nan|NaN|NAN)", "it is not a finite number"),
    (r"[-+]?([0-9.]{19,}([eE][-+]?[0-9]+)?|[0-9.]+[eE][-+]?[0-9]{3,})", "it is too large or too long for a number"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Line and column, from 1, where something begins; ``file`` if it is not the document's.

    Both are 0 where ``file`` is a flag of the command line.
    """

    line: int = 1
    column: int = 1
    file: str | None = None


@dataclasses.dataclass(slots=True)
class Document:
    """One YAML file: its data as dicts, lists and scalars, and the place of each.

    Attributes:
        file: name of the file as it is shown to the user.
        data: content of the file.
        values: place of every value by its path.
        keys: place of every key by its path.
        written: unquoted scalars as written in the file, by path.
        problems: problems of the file that do not depend on its schema.
    """

    file: str
    data: Any = None
    values: dict[KeyPath, Place] = dataclasses.field(default_factory=dict)
    keys: dict[KeyPath, Place] = dataclasses.field(default_factory=dict)
    written: dict[KeyPath, str] = dataclasses.field(default_factory=dict)
    problems: list[Problem] = dataclasses.field(default_factory=list)

    def problem(self, path: KeyPath, message: str, hint: str | None = None, *, key: bool = False) -> Problem:
        """A problem at the value or key at ``path``; if it is missing, at the section that would contain it."""
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
    """A value on one line, quoted if it is a string, abbreviated, without control characters."""
    text = f'"{value}"' if isinstance(value, str) else str(value)
    text = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def parse(text: str, file: str, *, merge_keys: bool = False) -> Document:
    """Read YAML; ``file`` is its name in problems. With ``merge_keys`` a ``<<`` is a key as any other.

    Raises:
        SpecError: it is not YAML, or too large. Ambiguous values are reported in ``problems``.
    """
    document = Document(file)
    refuse_hidden(text, file)
    reader = _Reader(document, merge_keys=merge_keys)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        reader.scan(loader)
    except yaml.MarkedYAMLError as error:
        raise _syntax(document, text, error) from None
    except yaml.YAMLError:
        raise _fatal(document, Place(), "cannot be read as YAML", "save the file as UTF-8 text") from None
    finally:
        loader.dispose()
    root = reader.nodes[0] if reader.nodes else None
    if root is None or (isinstance(root, yaml.ScalarEvent) and not root.style and _NULL.fullmatch(root.value)):
        raise _fatal(document, Place(), "the file is empty", "start from one of the examples in inventory/")
    if not isinstance(root, yaml.MappingStartEvent):
        raise _not_keys(document, text, root)
    document.data = reader.value(0, (), 0)
    return document


def parse_scalar(text: str, file: str, key: str) -> Document:
    """A document with one unquoted value under ``key``, as a file with ``key: text`` has, but taken to its end.

    Characters that are not seen, and ambiguous values, are reported in ``problems``.
    """
    document = Document(file)
    document.data = {key: _unquoted(document, Place(), (key,), text)}
    return document


def refuse_hidden(text: str, file: str) -> None:
    """Raise a SpecError if ``text`` has characters that are not seen, in comments too: it may not be what it shows."""
    at = hidden_at(text, f"{LINES}\r")
    if at is not None:
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        message, hint = f"unexpected character {named(text[at])}", "delete it, or save the file as plain text"
        raise SpecError([Problem(file, line, column, "", message, hint)])


def _fatal(document: Document, place: Place, message: str, hint: str | None = None) -> SpecError:
    return SpecError([*document.problems, Problem(document.file, place.line, place.column, "", message, hint)])


def _place(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1)


def _not_keys(document: Document, text: str, root: Any) -> SpecError:
    """The error of a file whose ``root`` is a list or a scalar."""
    from sparkcluster.spec import slips  # noqa: PLC0415 - for wrong input alone

    if not isinstance(root, yaml.ScalarEvent):
        hint = "put the list below a key, such as nodes:"
        return _fatal(document, _place(root.start_mark), "expected 'key: value' lines, found a list", hint)
    slip = slips.not_keys(text)
    if slip is None:
        return _fatal(document, _place(root.start_mark), "expected 'key: value' lines, found a single value")
    return _fatal(document, Place(*slip[:2]), *slip[2:])


def _syntax(document: Document, text: str, error: yaml.MarkedYAMLError) -> SpecError:
    from sparkcluster.spec import slips  # noqa: PLC0415 - for wrong input alone

    marks = [mark for mark in (error.problem_mark, error.context_mark) if mark]
    places = [(place.line, place.column) for place in map(_place, marks)] or [(1, 1)]
    reported = f"{error.context or ''} {error.problem or ''}"
    line, column, *words = slips.slip(text, places[0], places[-1], reported)
    return _fatal(document, Place(line, column), *words)


class _Reader:
    """Turns YAML events into data and places.

    Attributes:
        nodes: the event with which each node begins. An alias has that of the node it names.
        starts: position of each node; of an alias, that of the node it names.
        ends: of a list or mapping, the position after its last node.
    """

    def __init__(self, document: Document, *, merge_keys: bool = False) -> None:
        self.document = document
        self.merge_keys = merge_keys
        self.count = 0
        self.characters = 0
        self.nodes: list[Any] = []
        self.starts: list[int] = []
        self.ends: dict[int, int] = {}

    def scan(self, loader: Any) -> None:
        """Read the events of the one document, before anything recurses; size and depth are limited here."""
        anchors: dict[str, int] = {}
        open_nodes: list[int] = []
        while loader.check_event():
            event = loader.get_event()
            place, position = _place(event.start_mark), len(self.nodes)
            if isinstance(event, yaml.DocumentStartEvent) and self.nodes:
                raise _fatal(self.document, place, "a second document ('---')", "keep one document per file")
            if isinstance(event, yaml.CollectionEndEvent):
                self.ends[open_nodes.pop()] = position
            if not isinstance(event, yaml.NodeEvent):
                continue
            start = self._start(event, anchors)
            self.starts.append(start)
            self.nodes.append(event if start == position else self.nodes[start])
            if position >= 2 * MAX_VALUES:
                raise _fatal(self.document, place, f"more than {MAX_VALUES} values", "is this the right file?")
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append(position)
                if len(open_nodes) > MAX_DEPTH:
                    raise _fatal(self.document, place, f"nested deeper than {MAX_DEPTH} levels")

    def _start(self, event: Any, anchors: dict[str, int]) -> int:
        """The position of the node that ``event`` begins, or names as an alias."""
        place, position = _place(event.start_mark), len(self.nodes)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                message = f"undefined alias *{shown(event.anchor)[1:-1]}"
                raise _fatal(self.document, place, message, "quote a value that begins with '*'")
            return anchors[event.anchor]
        if event.tag is not None:
            raise _fatal(self.document, place, "tags ('!…') are not supported", "quote a value that begins with '!'")
        if event.anchor is not None:
            anchors[event.anchor] = position
        return position

    def _entries(self, position: int) -> Iterator[int]:
        """Positions of the nodes directly in a list or mapping; of a mapping, keys and values in turn."""
        start = self.starts[position]
        entry = start + 1
        while entry < self.ends[start]:
            yield entry
            entry = self.ends.get(entry, entry + 1)

    def _complain(self, node: Any, path: KeyPath, message: str, hint: str | None = None) -> None:
        _complain(self.document, _place(node.start_mark), path, message, hint)

    def value(self, position: int, path: KeyPath, depth: int) -> Any:
        """The data of a node. Aliases are followed, so size and depth are limited once more."""
        node = self.nodes[position]
        place = _place(node.start_mark)
        self.count += 1
        if self.count > MAX_VALUES:
            raise _fatal(self.document, place, f"more than {MAX_VALUES} values with aliases followed")
        if depth > MAX_DEPTH:
            raise _fatal(self.document, place, f"nested deeper than {MAX_DEPTH} levels with aliases followed")
        self.document.values[path] = place
        if isinstance(node, yaml.ScalarEvent):
            return self._scalar(node, path)
        entries = list(self._entries(position))
        if isinstance(node, yaml.SequenceStartEvent):
            return [self.value(entry, (*path, index), depth + 1) for index, entry in enumerate(entries)]
        out: dict[str, Any] = {}
        for key, value in zip(map(self.nodes.__getitem__, entries[::2]), entries[1::2], strict=True):
            name = key.value if isinstance(key, yaml.ScalarEvent) else ""
            here = (*path, name)
            hidden = hidden_at(name)
            if hidden is not None:
                self._complain(key, path, f"a key contains {named(name[hidden])}")
            elif not name:
                self._complain(key, path, "a key must be a scalar", "write 'key: value'")
            elif not key.style and name == "<<" and not self.merge_keys:
                self._complain(key, path, "merge keys ('<<') are not supported", "write the keys out")
            elif name in out:
                first = self.document.keys[here].line
                self._complain(key, here, f"duplicate key, first in line {first}", "keep one of them")
            else:
                self.document.keys[here] = _place(key.start_mark)
                out[name] = self.value(value, here, depth + 1)
        return out

    def _scalar(self, node: Any, path: KeyPath) -> Any:
        self.characters += len(node.value)
        if self.characters > MAX_CHARACTERS:
            place = _place(node.start_mark)
            raise _fatal(self.document, place, f"more than {MAX_CHARACTERS} characters with aliases followed")
        if not node.style:
            return _unquoted(self.document, _place(node.start_mark), path, node.value)
        return _seen(self.document, _place(node.start_mark), path, node.value)


def _complain(document: Document, place: Place, path: KeyPath, message: str, hint: str | None = None) -> None:
    document.problems.append(Problem(document.file, place.line, place.column, path_text(path), message, hint))
    if len(document.problems) >= MAX_PROBLEMS:
        raise SpecError(document.problems)


def _seen(document: Document, place: Place, path: KeyPath, text: str) -> str:
    """``text``, or nothing where it has characters that are not seen."""
    hidden = hidden_at(text, LINES)
    if hidden is None:
        return text
    _complain(document, place, path, f"contains {named(text[hidden])}")
    return ""


def _unquoted(document: Document, place: Place, path: KeyPath, text: str) -> Any:
    """What an unquoted scalar stands for; a problem where YAML parsers disagree."""
    if _seen(document, place, path, text) != text:
        return ""
    document.written[path] = text
    for pattern, why in _UNCLEAR:
        if re.fullmatch(pattern, text):
            # The value is not shown: it may be a secret of digits.
            hint = "quote it if it is a string, or write a plain decimal number"
            _complain(document, place, path, f"is ambiguous: {why}", hint)
            return text
    return _resolve(text)


def _resolve(text: str) -> Any:
    """The value of an unquoted scalar."""
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
        return bool(_TRUE.fullmatch(text))
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
