"""The finding: what one check saw, why it matters, and what to type."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from sparkcluster.hints import Typed

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Most severe first."""
_TYPED_ON_NODE = re.compile(r"(?:sudo|docker|ip|df|du|ls|nvidia-smi|systemctl|journalctl|loginctl|lspci|cat|echo)\s")
REMEDY_LABELS = ("hint", "then", "or")
"""What is typed first, what is typed next, and what is typed instead of all of that."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        code: stable name of the check, as ``NET-014``.
        severity: an ``error`` stops ``up``; a ``warning`` does not.
        summary: one line, no full stop.
        node: name of the node it is about, or None for the whole cluster.
        seen: what was read, verbatim if possible.
        why: what happens otherwise.
        remedy: commands or sentences that fix it, in order; one that begins with ``or`` is in place of those before it.
        file: the user's file it is about, if any.
        line: one-based line in ``file``.
        step: step of ``sparkcluster setup`` that fixes it, if there is one.
    """

    code: str
    severity: Severity
    summary: str
    node: str | None = None
    seen: str = ""
    why: str = ""
    remedy: tuple[str, ...] = ()
    file: str | None = None
    line: int | None = None
    step: str | None = None

    @property
    def place(self) -> str:
        """``file:line: ``, without the line for a flag; nothing if it is not about either."""
        return f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""

    @property
    def headline(self) -> str:
        """Code, place, else the node if the summary lacks it, and summary."""
        told = self.node and re.search(rf"(?<![\w.-]){re.escape(self.node)}(?![\w-]|\.\w)", self.summary)
        node = f"{self.node}: " if self.node and not told else ""
        return f"{self.code} {self.place or node}{self.summary}"

    @property
    def fixed_by_setup(self) -> bool:
        """Whether ``setup`` fixes it now; where ranks would have to be stopped first, ``remedy`` has the command."""
        return self.step is not None and not any(f"--only {self.step}" in remedy for remedy in self.remedy)

    def notes(self, typed: Typed) -> Iterator[str]:
        """Lines for a command that continues: the summary, what was seen, and what to type, with this inventory."""
        yield f"{self.severity}: {self.headline}"
        for label, text in self.details():
            if label != "why":
                yield f"  {label}: {typed(text)}"

    def details(self, *, headed: bool = False) -> Iterator[tuple[str, str]]:
        """What there is beside the summary, with its label: ``seen``, ``why``, and of remedies one of REMEDY_LABELS.

        A command for the node says so, unless the finding is ``headed`` by the node's name.
        """
        node = None if headed else self.node
        remedies = ((label, placed(text, node)) for label, text in self._remedies())
        labelled = [("seen", self.seen), ("why", self.why), *remedies]
        return ((label, text) for label, text in labelled if text)

    def _remedies(self) -> Iterator[tuple[str, str]]:
        """Each remedy with its label: that of ``setup`` first, and what is done by hand in place of it."""
        label = "hint"
        if self.fixed_by_setup:
            yield label, f"sparkcluster setup INVENTORY --only {self.step}"
            label = "or"
        for remedy in filter(None, self.remedy):
            other = re.match("or,? ", remedy)
            yield ("or", remedy[other.end() :]) if other else (label, remedy)
            label = "then"

    def as_json(self) -> dict[str, Any]:
        """The finding in the stable JSON format."""
        return {**dataclasses.asdict(self), "remedy": list(self.remedy)}


def placed(remedy: str, node: str | None) -> str:
    """``remedy``; where it is a command for ``node``, with its name."""
    told = "   on " in remedy or any(f" on {word} " in remedy for word in ("the", "that", "both", "every"))
    return f"on {node}: {remedy}" if node and _TYPED_ON_NODE.match(remedy) and not told else remedy


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """The most severe first."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def has_errors(findings: tuple[Finding, ...] | list[Finding]) -> bool:
    """Whether a finding prevents a launch."""
    return any(finding.severity == "error" for finding in findings)
