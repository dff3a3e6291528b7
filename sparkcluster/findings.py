"""The finding: what one check saw, why it matters, and what to type."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from sparkcluster.hints import Typed
from sparkcluster.printable import word

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Most severe first."""
REMEDY_LABELS = ("hint", "then", "or")
"""What is typed first, what is typed next, and what is typed instead of all of that."""


@dataclasses.dataclass(frozen=True, slots=True)
class Remedy:
    """One step of what fixes a finding.

    Attributes:
        text: a command or a sentence; ``{name}`` stands for a value that ``remedies`` fills in.
        kind: a command for a ``node``, one for this machine (``here``), a change of a ``file``, or ``words``.
        on: where a command for a node is typed, if not on the finding's node.
        note: what the command does, or when it is needed.
        instead: whether it is in place of those before it.
    """

    text: str
    kind: Literal["node", "here", "file", "words"] = "words"
    on: str = ""
    note: str = ""
    instead: bool = False

    def shown(self, node: str | None = None) -> str:
        """As one line; a command for a node with its name, by default ``node``."""
        where = self.on or (node if self.kind == "node" else None)
        return (f"on {where}: " if where else "") + self.text + (f"   {self.note}" if self.note else "")

    def __str__(self) -> str:
        return f"or {self.shown()}" if self.instead else self.shown()


def on_node(command: str, note: str = "", *, on: str = "", instead: bool = False) -> Remedy:
    """A command for the finding's node, or for the nodes that ``on`` names."""
    return Remedy(command, "node", on, note, instead)


def here(command: str, note: str = "", *, instead: bool = False) -> Remedy:
    """A command for this machine."""
    return Remedy(command, "here", note=note, instead=instead)


def edit(change: str, *, instead: bool = False) -> Remedy:
    """A change of a file."""
    return Remedy(change, "file", instead=instead)


def remedies(steps: Iterable[Remedy | str], values: Mapping[str, object] | None = None) -> tuple[Remedy, ...]:
    """``steps``, of which a text is words; with ``values`` in place of their names, each as one word of a shell."""

    def value(name: re.Match[str]) -> str:
        return word(values[name[1]]) if values and name[1] in values else name[0]

    every = (Remedy(each) if isinstance(each, str) else each for each in steps if each)
    return tuple(dataclasses.replace(each, text=re.sub(r"\{(\w+)\}", value, each.text)) for each in every)


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        code: stable name of the check, as ``NET-006``.
        severity: an ``error`` stops ``up``; a ``warning`` does not.
        summary: one line, no full stop.
        node: name of the node it is about, or None for the whole cluster.
        seen: what was read, verbatim if possible.
        why: what happens otherwise.
        remedies: what fixes it, in order.
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
    remedies: tuple[Remedy, ...] = ()
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
    def remedy(self) -> tuple[str, ...]:
        """Its remedies as text; ``or`` before one that is in place of those before it."""
        return tuple(map(str, self.remedies))

    @property
    def fixed_by_setup(self) -> bool:
        """Whether ``setup`` fixes it now; where ranks would have to be stopped first, a remedy has the command."""
        return self.step is not None and not any(f"--only {self.step}" in each.text for each in self.remedies)

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
    """The most severe first."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def has_errors(findings: tuple[Finding, ...] | list[Finding]) -> bool:
    """Whether a finding prevents a launch."""
    return any(finding.severity == "error" for finding in findings)
