"""Signatures: log lines that identify a cause, and what to report about it. Pure."""

from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkcluster.printable import COLOURS, word

LONGEST = 4096
"""Characters of a line that patterns are matched against, and that a node sends."""

EXPLAINED = "RUN-021"
"""Code of causes without a check of their own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """Why a rank ended or fails, in one line, and how to fix it (None if only the log can tell).

    Attributes:
        line: the log line, unchanged; may be empty.
        code: code of the check that reports it on a running cluster.
        consequence: whether it follows from another cause.
        by_peer: whether the end of another rank, or a link without a carrier, may explain it.
        unlisted: whether it is an exception without a signature.
        peer: address of the other rank, if the line has it.
    """

    summary: str
    hint: str | None = None
    line: str = ""
    code: str = EXPLAINED
    consequence: bool = False
    by_peer: bool = False
    unlisted: bool = False
    peer: str = ""

    @property
    def order(self) -> int:
        """0 for a root cause, 1 if unlisted, 2 if another rank or a link may have caused it, 3 for a consequence."""
        return 3 if self.consequence else 2 if self.by_peer else int(self.unlisted)


Compute = Callable[[re.Match[str], Sequence[str]], Cause]


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """Log lines of one cause.

    Attributes:
        name: short and stable.
        pattern: matched against single lines, the last match counts; its group ``peer`` fills ``Cause.peer``.
        near: patterns that other lines of the log must match, too.
        summary: what it means; names of the pattern's groups in braces.
        hint: how to fix it; names of the pattern's groups in braces.
        source: public thread that has the line.
        more: builds the Cause from the match and all lines, instead of ``summary`` and ``hint``.
        code, consequence, by_peer: as in ``Cause``.
    """

    name: str
    pattern: str
    source: str
    summary: str = ""
    hint: str | None = None
    more: Compute | None = None
    code: str = EXPLAINED
    consequence: bool = False
    by_peer: bool = False
    near: tuple[str, ...] = ()

    def match(self, lines: Sequence[str]) -> Cause | None:
        """The cause if one of ``lines`` matches."""
        for line in reversed(lines):
            found = re.search(self.pattern, line)
            if found is None:
                continue
            if not all(any(re.search(pattern, each) for each in lines) for pattern in self.near):
                return None
            if self.more is not None:
                cause = self.more(found, lines)
            else:
                groups = found.groupdict(default="?")
                typed = {name: word(text) for name, text in found.groupdict().items() if text is not None}
                hint = self.hint.format(**{**groups, **typed}) if self.hint else None
                cause = Cause(self.summary.format(**groups), hint)
            return dataclasses.replace(
                cause,
                line=line.strip(),
                code=self.code,
                consequence=self.consequence,
                by_peer=self.by_peer,
                peer=found.groupdict().get("peer") or "",
            )
        return None


def plain(lines: Sequence[str]) -> list[str]:
    """``lines`` without terminal colours, which would split the words of a pattern, cut to ``LONGEST``."""
    return [COLOURS.sub("", line[:LONGEST]) for line in lines]


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """A line of a log that shows a phase.

    Attributes:
        pattern: its groups ``kind``, ``done``, ``total`` and ``detail`` fill in the phase.
        kind: name of the phase; of several steps of a phase the first has its words.
        words: the phase in a few words.
        done: completed part with this line, if the line has no number.
        source: the module that prints the line.
    """

    pattern: str
    kind: str
    words: str = ""
    done: int | None = None
    source: str = ""


def signatures(
    path: Path, kind: str = "signatures", *, memory_hint: str = "", more: Mapping[str, Compute] | None = None
) -> tuple[Signature, ...]:
    """The rows ``kind`` of the table at ``path``, in its order.

    ``memory_hint`` replaces the hint MEMORY; ``more`` has the functions that rows name.
    """
    found = []
    for row in rows(path, kind):
        named = (more or {}).get(row.get("more", ""))
        hint = memory_hint if row.get("hint") == "MEMORY" else row.get("hint")
        found.append(Signature(**{**row, "hint": hint, "more": named, "near": tuple(row.get("near", ()))}))
    return tuple(found)


def rows(path: Path, kind: str) -> list[dict[str, Any]]:
    """The rows ``kind`` of the table of log lines at ``path``; a list of patterns becomes their alternation."""
    return [{**row, "pattern": "|".join(_listed(row["pattern"]))} for row in _table(path)[kind]]


def _listed(pattern: str | list[str]) -> list[str]:
    return [pattern] if isinstance(pattern, str) else pattern


@functools.cache
def _table(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))
