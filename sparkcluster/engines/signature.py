"""What a signature is: how one cause shows in an engine's log, and what is to be said of it. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

ANSI = re.compile(r"\x1b\[[0-9;]*m")

EXPLAINED = "RUN-021"
"""Code of the causes that have no check of their own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """Why a rank ended or ails, in one line, and what mends it (None where nothing better than the log is known).

    Attributes:
        line: of the log, as it stands there; empty where no line says it.
        code: of the check that reports it for a cluster that runs.
        consequence: whether it names what follows from another cause rather than a root.
    """

    summary: str
    hint: str | None = None
    line: str = ""
    code: str = EXPLAINED
    consequence: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """How one cause shows in a log.

    Attributes:
        name: short and stable.
        pattern: searched for in single lines, the last match counts.
        summary: what it means; names of the pattern's groups in braces.
        hint: what mends it; likewise.
        source: public thread that has the line.
        code, consequence: as of the Cause.
    """

    name: str
    pattern: str
    summary: str
    hint: str | None
    source: str
    more: Callable[[re.Match[str], Sequence[str]], Cause] | None = None
    code: str = EXPLAINED
    consequence: bool = False

    def match(self, lines: Sequence[str]) -> Cause | None:
        """The cause when one of ``lines`` shows it."""
        for line in reversed(lines):
            found = re.search(self.pattern, line)
            if found is None:
                continue
            if self.more is not None:
                cause = self.more(found, lines)
            else:
                values = {name: value if value is not None else "?" for name, value in found.groupdict().items()}
                cause = Cause(self.summary.format(**values), self.hint.format(**values) if self.hint else None)
            return dataclasses.replace(cause, line=line.strip(), code=self.code, consequence=self.consequence)
        return None


def plain(lines: Sequence[str]) -> list[str]:
    """``lines`` without terminal colours, which would stand between the words of a pattern."""
    return [ANSI.sub("", line) for line in lines]
