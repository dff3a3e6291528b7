"""YAML whose every value remembers the line it stands on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sparkcluster.errors import Problem, SpecError, UsageError


@dataclasses.dataclass(frozen=True, slots=True)
class Marked:
    """A value of a YAML file.

    Attributes:
        value: a plain value; in a mapping or a list, the entries are marked themselves.
        line: counted from 1.
        column: counted from 1.
        path: keys that lead here, as ``sparks[0].mtu``.
    """

    value: Any
    line: int
    column: int
    path: str

    def get(self, key: str) -> Marked | None:
        """The entry of a mapping, None where this is no mapping or has no such key."""
        return self.value.get(key) if isinstance(self.value, dict) else None

    def items(self) -> list[Marked]:
        """Entries of a list; none where this is no list."""
        return self.value if isinstance(self.value, list) else []


def read(path: Path) -> Marked:
    """Read a YAML file of one document.

    Raises:
        UsageError: it cannot be read.
        SpecError: it is no YAML.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return Marked(None, 1, 1, "")
        return _marked(node, yaml.SafeLoader(""), "")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        what = getattr(error, "problem", None) or "not YAML"
        raise SpecError([Problem(str(path), line, column, "", what)]) from error


def _marked(node: Any, loader: Any, path: str) -> Marked:
    import yaml

    line, column = node.start_mark.line + 1, node.start_mark.column + 1
    if isinstance(node, yaml.MappingNode):
        inside = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            inside[key] = _marked(value_node, loader, f"{path}.{key}" if path else key)
        return Marked(inside, line, column, path)
    if isinstance(node, yaml.SequenceNode):
        entries = [_marked(entry, loader, f"{path}[{n}]") for n, entry in enumerate(node.value)]
        return Marked(entries, line, column, path)
    return Marked(loader.construct_object(node, deep=True), line, column, path)
