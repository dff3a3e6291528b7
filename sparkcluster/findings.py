"""Findings: what a check saw, why it matters, and how to fix it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from sparkcluster.hints import CommandLine, with_node
from sparkcluster.printable import word

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Most severe first."""
REMEDY_LABELS = ("hint", "then", "or")
"""Labels of the first remedy, of the next ones, and of an alternative."""


@dataclasses.dataclass(frozen=True, slots=True)
class Remedy:
    """One step of a fix.

    Attributes:
        text: a command or a sentence; ``remedies`` replaces ``{name}`` with a value.
        kind: a command for a ``node``, a command for this machine (``here``), a change of a ``file``, or ``words``.
        on: the nodes on which to type the command, if not on the finding's node.
        note: what the command does, or when it is needed.
        instead: whether it is an alternative to the remedies before it.
    """

    text: str
    kind: Literal["node", "here", "file", "words"] = "words"
    on: str = ""
    note: str = ""
    instead: bool = False

    def shown(self, node: str | None = None) -> str:
        """As one line; a command for a node is preceded by the node's name, by default ``node``."""
        where = self.on or (node if self.kind == "node" else None)
        return (f"on {where}: " if where else "") + self.text + (f"   {self.note}" if self.note else "")

    def __str__(self) -> str:
        return f"or {self.shown()}" if self.instead else self.shown()


def on_node(command: str, note: str = "", *, on: str = "", instead: bool = False) -> Remedy:
    """A command for the finding's node, or for the nodes in ``on``."""
    return Remedy(command, "node", on, note, instead)


def here(command: str, note: str = "", *, instead: bool = False) -> Remedy:
    """A command for this machine."""
    return Remedy(command, "here", note=note, instead=instead)


def edit(change: str, *, instead: bool = False) -> Remedy:
    """A change of a file."""
    return Remedy(change, "file", instead=instead)


def remedies(steps: Iterable[Remedy | str], values: Mapping[str, object] | None = None) -> tuple[Remedy, ...]:
    """``steps`` as remedies; a string is a sentence. ``{name}`` is replaced with its value, quoted for a shell."""

    def value(name: re.Match[str]) -> str:
        return word(values[name[1]]) if values and name[1] in values else name[0]

    every = (Remedy(each) if isinstance(each, str) else each for each in steps if each)
    return tuple(dataclasses.replace(each, text=re.sub(r"\{(\w+)\}", value, each.text)) for each in every)


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        code: stable name of the check, for example ``NET-006``.
        severity: an ``error`` stops ``up``; a ``warning`` does not.
        summary: one line, no full stop.
        node: name of the node, or None for the whole cluster.
        seen: what was read, verbatim if possible.
        why: what happens if it is not fixed.
        remedies: how to fix it, in order.
        file: the user's file, if it is about a file.
        line: line in ``file``, from 1.
        step: step of ``sparkcluster setup`` that fixes it, if there is one.
    """

    code: str
    severity: Severity
    summary: str
    node: str | None = None
    seen: str = ""
    why: str = ""
    remedies: tuple[Remedy, ...] = ()
    file: str | None = None
    line: int | None = None
    step: str | None = None

    @property
    def place(self) -> str:
        """``file:line: ``; for a flag without the line; empty if there is neither."""
        return f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""

    @property
    def headline(self) -> str:
        """Code, place and summary; without a place, the node unless the summary names it."""
        return f"{self.code} {self.place + self.summary if self.place else with_node(self.node, self.summary)}"

    @property
    def remedy(self) -> tuple[str, ...]:
        """The remedies as text; an alternative begins with ``or``."""
        return tuple(map(str, self.remedies))

    @property
    def fixed_by_setup(self) -> bool:
        """Whether ``setup`` fixes it now; if ranks must be stopped first, a remedy holds the command."""
        return self.step is not None and not any(f"--only {self.step}" in each.text for each in self.remedies)

    def notes(self, typed: CommandLine) -> Iterator[str]:
        """Lines for a command that continues: the summary, what was seen and the remedies, for this inventory."""
        yield f"{self.severity}: {self.headline}"
        for label, text in self.details():
            if label != "why":
                yield f"  {label}: {typed(text)}"

    def details(self, *, headed: bool = False) -> Iterator[tuple[str, str]]:
        """Everything after the summary as (label, text): ``seen``, ``why``, then remedies with REMEDY_LABELS.

        A command for the node names the node, unless the output is already ``headed`` by its name.
        """
        node = None if headed else self.node
        found = [("seen", self.seen), ("why", self.why)]
        label = "hint"
        if self.fixed_by_setup:
            found.append((label, f"sparkcluster setup INVENTORY --only {self.step}"))
            label = "or"
        for each in self.remedies:
            found.append(("or" if each.instead else label, each.shown(node)))
            label = "then"
        return ((name, text) for name, text in found if text)

    def as_json(self) -> dict[str, Any]:
        """The finding in the stable JSON format."""
        document = dataclasses.asdict(self)
        del document["remedies"]
        return {**document, "remedy": list(self.remedy)}


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Sorted by severity, most severe first."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def has_errors(findings: tuple[Finding, ...] | list[Finding]) -> bool:
    """Whether a finding prevents a launch."""
    return any(finding.severity == "error" for finding in findings)
