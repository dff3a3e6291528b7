"""Golden files: reviewed output of tests.

``UPDATE_GOLDEN=1`` updates every golden file whose content changed (without ``-n``: a base comes before its cases); read
the diff before committing it.

A document is stored completely or, if its file begins with ``base: CASE``, as its differences from another case:

``replace``
    word → word, in every string of the base, before anything else; it is written by hand.
``set``
    path → value. A path is the keys on the way, joined by ``/``; an element of a list is named by its ``name`` or
    ``purpose``, or by its index.
``remove``
    paths that the base has and this case lacks.
``lines``
    path of a list of strings → its changes in order, as a list or as one text: ``-`` removes a line, ``+`` adds one, and ``=`` is the line
    after which the next one is added.
``like``
    path of a new member → a similar member of the same parent (in this case or in the base), and the differences
    from that member.

The words of a command (``argv``, ``engine``, ``start``) are stored as one line for each flag, quoted as in a shell.
"""

from __future__ import annotations

import copy
import difflib
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1] / "golden"
COMMANDS = {"argv", "engine", "start"}
NAMES = ("name", "purpose")
_GONE = object()
WORD = re.compile(r"[0-9A-Za-z]+(?:\.[0-9A-Za-z]+)*")


def update() -> bool:
    """Whether golden files are to be written."""
    return bool(os.environ.get("UPDATE_GOLDEN"))


def check_text(path: Path, text: str) -> None:
    """``text`` equals the content of ``path``."""
    if update():
        _write(path, text)
    expected = path.read_text()
    if text != expected:
        raise AssertionError(_failure(path, expected, text))


def check(path: Path, document: Any, *, base: str | None = None) -> None:
    """``document`` equals the content of ``path`` (``KIND/CASE/FILE.yaml``); a new file is based on case ``base``."""
    made = packed(document)
    if update() and not (path.exists() and _read(path) == made):
        base = _stored(path).get("base") if path.exists() else base
        _write(path, _text(made if base is None else {"base": base, **difference(_read(_sibling(path, base)), made)}))
    expected = _read(path)
    if made != expected:
        raise AssertionError(_failure(path, _text(expected), _text(made)))


def read(path: Path) -> Any:
    """The complete document of ``path``."""
    return _with_commands(_read(path), _words)


def cases(kind: str, file: str) -> list[str]:
    """The cases below ``tests/golden/KIND``, bases first: an update must write them first."""
    files = {path.name: path / file for path in (ROOT / kind).iterdir()}

    def depth(name: str) -> int:
        base = _stored(files[name]).get("base") if files[name].exists() else None
        return 0 if base is None else 1 + depth(base)

    return sorted(files, key=lambda name: (depth(name), name))


# ------------------------------------------------------------------------------------------------ differences


def difference(base: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The sections that turn ``base`` into ``new``."""
    patch: dict[str, Any] = {"set": {}, "remove": [], "lines": {}, "like": {}}
    _compare(base, new, "", patch)
    return {section: entries for section, entries in patch.items() if entries}


def _opcodes(base: list[str], new: list[str]) -> list[tuple[str, int, int, int, int]]:
    return difflib.SequenceMatcher(None, base, new, autojunk=False).get_opcodes()


def _compare(base: Any, new: Any, path: str, patch: dict[str, Any]) -> None:
    if type(base) is type(new) and base == new:
        return
    pairs: dict[str, tuple[Any, Any]] | None = None
    if isinstance(base, dict) and isinstance(new, dict) and not any("/" in key for key in [*base, *new]):
        pairs = _members(base, new, path, patch)
    elif isinstance(base, list) and isinstance(new, list):
        changes = _changed_lines(base, new)
        if changes is not None:
            patch["lines"][path] = changes
            return
        pairs = _aligned(base, new)
    if pairs is None:
        patch["set"][path] = new
        return
    for name, (before, after) in pairs.items():
        if after is _GONE:
            patch["remove"].append(_joined(path, name))
        else:
            _compare(before, after, _joined(path, name), patch)


def _members(base: dict[str, Any], new: dict[str, Any], path: str, patch: dict[str, Any]) -> dict[str, Any]:
    """Record members of only one of two mappings; members of both, by key."""
    patch["remove"] += [_joined(path, key) for key in base if key not in new]
    beside = {key: new.get(key, value) for key, value in base.items() if isinstance(value, dict)}
    for key in [key for key in new if key not in base]:
        value = new[key]
        others = beside.items() if isinstance(value, dict) else ()
        likes = [{"member": name, **difference(other, value)} for name, other in others]
        best = min(likes, key=lambda like: len(_text(like)), default=None)
        if best is not None and len(_text(best)) < len(_text(value)):
            patch["like"][_joined(path, key)] = best
            beside[key] = value
        else:
            patch["set"][_joined(path, key)] = value
    return {key: (base[key], new[key]) for key in base if key in new}


def _changed_lines(base: list[Any], new: list[Any]) -> list[str] | None:
    """The changes of a list of strings; None if they are not shorter than the list, or ambiguous."""
    if not all(isinstance(line, str) and "\n" not in line for line in [*base, *new]):
        return None
    changes: list[str] = []
    for kind, start, end, first, last in _opcodes(base, new):
        if kind == "insert" and start > 0:
            changes.append(f"= {base[start - 1]}")
        if kind != "equal":
            changes += [f"- {line}" for line in base[start:end]] + [f"+ {line}" for line in new[first:last]]
    try:
        unambiguous = _with_changes(base, changes) == new
    except ValueError:
        return None
    return changes if unambiguous and len(_text(changes)) < len(_text(new)) else None


def _aligned(base: list[Any], new: list[Any]) -> dict[str, tuple[Any, Any]] | None:
    """Elements of two lists by name or index; None if they are not the same elements in the same order."""
    if not base or not all(isinstance(element, dict) for element in [*base, *new]):
        return None
    names, wanted = _element_names(base), _element_names(new)
    if len(base) == len(new):
        return dict(zip(names, zip(base, new, strict=True), strict=True))
    kept = [name for name in names if name in wanted]
    if kept != wanted or names[0].isdigit():
        return None
    after = dict(zip(wanted, new, strict=True))
    return {name: (element, after.get(name, _GONE)) for name, element in zip(names, base, strict=True)}


# --------------------------------------------------------------------------------------------------- applying


def apply(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """``base`` with the sections of ``patch`` applied."""
    base = _with_words(base, patch.get("replace", {}))
    document = copy.deepcopy(base)
    places = {path: _place(document, path) for section in ("set", "lines", "remove") for path in patch.get(section, [])}
    for path, value in patch.get("set", {}).items():
        holder, key = places[path]
        holder[key] = value
    for path, changes in patch.get("lines", {}).items():
        holder, key = places[path]
        holder[key] = _with_changes(holder[key], changes)
    for path in reversed(patch.get("remove", [])):
        holder, key = places[path]
        del holder[key]
    for path, like in patch.get("like", {}).items():
        *way, name = path.split("/")
        beside = _at(document, way)
        member = like["member"]
        beside[name] = apply(beside[member] if member in beside else _at(base, way)[member], like)
    return document


def _with_words(document: Any, words: dict[str, str]) -> Any:
    if isinstance(document, dict):
        return {key: _with_words(value, words) for key, value in document.items()}
    if isinstance(document, list):
        return [_with_words(element, words) for element in document]
    if isinstance(document, str):
        return WORD.sub(lambda match: words.get(match[0], match[0]), document)
    return document


def _with_changes(lines: list[str], changes: str | list[str]) -> list[str]:
    out: list[str] = []
    rest = list(lines)
    for change in changes.split("\n") if isinstance(changes, str) else changes:
        sign, line = change[:2], change[2:]
        if sign == "+ ":
            out.append(line)
            continue
        at = rest.index(line)
        out += rest[:at] if sign == "- " else rest[: at + 1]
        rest = rest[at + 1 :]
    return out + rest


def _place(document: Any, path: str) -> tuple[Any, Any]:
    """The mapping or list at ``path``, and its key or index there."""
    *way, last = path.split("/")
    holder = _at(document, way)
    return holder, _element_names(holder).index(last) if isinstance(holder, list) else last


def _at(document: Any, way: list[str]) -> Any:
    for part in way:
        document = document[_element_names(document).index(part) if isinstance(document, list) else part]
    return document


def _element_names(elements: list[Any]) -> list[str]:
    for key in NAMES:
        names = [element.get(key) for element in elements if isinstance(element, dict)]
        if all(isinstance(name, str | int) for name in names) and len(set(names)) == len(elements):
            return [str(name) for name in names]
    return [str(at) for at in range(len(elements))]


# ------------------------------------------------------------------------------------------------------ files


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _sibling(path: Path, case: str) -> Path:
    return path.parent.parent / case / path.name


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _stored(path: Path) -> dict[str, Any]:
    stored: dict[str, Any] = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return stored


def _read(path: Path) -> Any:
    stored = _stored(path)
    base = stored.pop("base", None)
    return stored if base is None else apply(_read(_sibling(path, base)), stored)


class _Dumper(yaml.SafeDumper):
    """Short collections of plain values on one line, anything else in block style; lines are not wrapped."""

    def represent_data(self, data: Any) -> yaml.Node:
        node = super().represent_data(data)
        if isinstance(node, yaml.CollectionNode):
            nodes = [each for item in node.value for each in (item if isinstance(item, tuple) else (item,))]
            plain = all(isinstance(each, yaml.ScalarNode) and " -" not in f" {each.value}" for each in nodes)
            node.flow_style = plain and sum(len(each.value) + 2 for each in nodes) < 100
        return node


def _text(document: Any) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)


def packed(document: Any) -> Any:
    """``document`` with sorted keys, and each command as one line per flag."""
    return _with_commands(document, _flags)


def _with_commands(document: Any, change: Callable[[list[str]], list[str]], key: str = "") -> Any:
    if isinstance(document, dict):
        return {name: _with_commands(document[name], change, name) for name in sorted(document)}
    if not isinstance(document, list):
        return document
    return change(document) if key in COMMANDS else [_with_commands(element, change) for element in document]


def _flags(words: list[str]) -> list[str]:
    flags: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not flags:
            flags.append([])
        flags[-1].append(word)
    return [shlex.join(each) for each in flags]


def _words(flags: list[str]) -> list[str]:
    return [word for line in flags for word in shlex.split(line)]


def _failure(path: Path, expected: str, made: str) -> str:
    changed = difflib.unified_diff(expected.splitlines(), made.splitlines(), "expected", "made", lineterm="")
    return "\n".join(
        [f"{path} expects:", expected, "differences:", *changed, "", "hint: UPDATE_GOLDEN=1 writes what was made"]
    )
