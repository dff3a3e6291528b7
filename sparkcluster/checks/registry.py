"""What a check is, and how all of them are run: none may raise, and none may stop the others.

A check belongs to a stage, which says what it needs to be run at all:

    written   the spec alone; ``lint`` runs these without a node, everybody else with the facts at hand
    facts     what every node said of itself
    reach     what the nodes reached of one another (``facts.reach``)
    deep      what was measured between them (``facts.measured``) or read of them (``facts.hashes``)
    running   what a cluster that serves was seen doing (``facts.running``)

and says which nodes it is about at all:

    node          every one
    container     those whose ranks are containers; with runtime ``process`` the check is not run
    interconnect  those in a group of several; a node alone meets nobody
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from sparkcluster import engines
from sparkcluster.engines.base import Engine
from sparkcluster.facts.hashes import Hashes
from sparkcluster.facts.measured import Measured
from sparkcluster.facts.model import Facts, Unread
from sparkcluster.facts.reach import Reach
from sparkcluster.facts.running import Running
from sparkcluster.findings import Finding, Severity
from sparkcluster.spec import KeyPath, Spec
from sparkcluster.topology.model import Link, Member, Topology

Stage = Literal["written", "facts", "reach", "deep", "running"]
Scope = Literal["node", "container", "interconnect"]


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """What every check may look at.

    Attributes:
        facts: by node; empty while no node was asked, as in ``lint``.
        topology: without groups where there is none.
        reach, measured, running, hashes: None unless the checks of that stage are to be run.
    """

    spec: Spec
    facts: Mapping[str, Facts]
    topology: Topology
    reach: Reach | None = None
    measured: Measured | None = None
    running: Running | None = None
    hashes: Hashes | None = None

    @property
    def engine(self) -> Engine:
        """What the playbook is served by."""
        return engines.engine(self.spec.playbook.engine)

    @property
    def docker(self) -> bool:
        """Whether ranks are containers."""
        return self.spec.inventory.runtime.kind == "docker"

    def links(self) -> Iterator[tuple[Member, Link]]:
        """Every twin in use, with its node."""
        for member in self.topology.members.values():
            for link in member.links:
                yield member, link


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What one check saw; code and reason are the check's own.

    Attributes:
        at: path of the key in the playbook that it is about, as ``("args", "quantization")``; its file and line
            become the finding's.
        severity: None is the severity of the check.
    """

    node: str | None
    summary: str
    seen: str
    remedy: tuple[str, ...] = ()
    at: KeyPath | None = None
    severity: Severity | None = None


Body = Callable[[Context], Iterable[Seen]]


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        title: what holds on a healthy cluster.
        why: what happens where it does not; first paragraph of the body's docstring.
        more: the rest of that docstring, for the check's page.
        severity: the gravest that it reports.
        needs: fields of Facts without which it cannot judge a node; an unread one is a finding of its own.
        source: who has reported it, or whose advice it is.
        remedy: what mends it, in words; a finding has the commands for its node.
        scope: which nodes it is about.
    """

    code: str
    title: str
    why: str
    body: Body
    more: str = ""
    stage: Stage = "facts"
    severity: Severity = "error"
    needs: tuple[str, ...] = ()
    source: str = ""
    remedy: str = ""
    scope: Scope = "node"

    def concerns(self, context: Context, node: str) -> bool:
        """Whether it is about ``node``."""
        if self.scope == "container":
            return context.docker
        if self.scope == "interconnect":
            return any(group.size > 1 for group in context.topology.groups if node in group.names)
        return True

    @property
    def engine(self) -> str | None:
        """The engine whose playbooks it is about; None for all."""
        found = re.match(rf"{engines.__name__}\.(\w+)\.", self.body.__module__)
        return found[1] if found else None

    def run(self, context: Context) -> list[Finding]:
        """Findings of this check; one that crashes is a finding that blames the check."""
        if self.scope == "container" and not context.docker:
            return []
        try:
            return [self.finding(context.spec, one) for one in self.body(context)]
        except Exception as error:  # noqa: BLE001 - whatever it was, the other checks go on
            return [
                Finding(
                    code=self.code,
                    severity="warning",
                    summary=f"the check itself failed: {self.title}",
                    seen=f"{type(error).__name__}: {error}",
                    why="a defect of sparkcluster; whether this holds is not known",
                    remedy=("report it with the output of sparkcluster preflight INVENTORY --json",),
                )
            ]

    def finding(self, spec: Spec, one: Seen) -> Finding:
        """``one`` as a finding of this check."""
        file, line = _place(spec, one.at)
        severity = one.severity or self.severity
        return Finding(self.code, severity, one.summary, one.node, one.seen, self.why, one.remedy, file, line)


def _place(spec: Spec, at: KeyPath | None) -> tuple[str, int] | tuple[None, None]:
    """File and line of a key; of one that is not there, those of the section that would hold it."""
    path = at or ()
    while path and path not in spec.places:
        path = path[:-1]
    return spec.places[path] if path else (None, None)


CATALOGUE: dict[str, Check] = {}


def check(
    code: str,
    title: str,
    *,
    stage: Stage = "facts",
    severity: Severity = "error",
    needs: tuple[str, ...] = (),
    source: str = "",
    remedy: str = "",
    scope: Scope = "node",
) -> Callable[[Body], Body]:
    """Register a check under a code that never changes.

    Its docstring becomes the reason (the first paragraph, a sentence that says what happens to those who go on
    regardless) and the page (the rest).
    """

    def register(body: Body) -> Body:
        if code in CATALOGUE:
            raise ValueError(f"two checks are called {code}")
        first, _, rest = (inspect.getdoc(body) or "").partition("\n\n")
        why = " ".join(first.split()).removesuffix(".")
        CATALOGUE[code] = Check(code, title, why, body, rest, stage, severity, needs, source, remedy, scope)
        return body

    return register


def load(*names: str) -> None:
    """Register the checks of engines, by default of all; the others register themselves when they are imported."""
    for name in names or engines.names():
        for module in engines.engine(name).checks:
            importlib.import_module(module)


def run(context: Context, checks: Iterable[Check]) -> list[Finding]:
    """Findings of ``checks``, softened as inventory and playbook ask for, the gravest first."""
    chosen = list(checks)
    findings = [_softened(finding, context.spec) for one in chosen for finding in one.run(context)]
    findings += [_softened(finding, context.spec) for finding in unread(context, chosen)]
    order: Sequence[Severity] = ("error", "warning", "info")
    return sorted(findings, key=lambda finding: order.index(finding.severity))


UNREAD = "FACT-001"
UNPLANNED = "PLAN-001"

# Readings that fail with another one, which has a check of its own to say so.
_FOLLOWS = {"image": "docker", "ranks": "docker", "driver": "gpus", "cuda": "gpus", "driver_module": "gpus"}


def unread(context: Context, checks: Iterable[Check]) -> Iterator[Finding]:
    """One finding for every reading of a node that failed and that ``checks`` need."""
    chosen = list(checks)
    for name, facts in context.facts.items():
        waiting: dict[str, list[str]] = {}
        for one in chosen:
            if one.needs and one.concerns(context, name):
                for field in one.needs:
                    waiting.setdefault(field, []).append(one.code)
        for field, codes in waiting.items():
            value = getattr(facts, field)
            told = context.docker and isinstance(getattr(facts, _FOLLOWS.get(field, ""), None), Unread)
            if isinstance(value, Unread) and not told:
                yield Finding(
                    code=UNREAD,
                    severity="warning",
                    summary=f"{field} of {name} could not be read",
                    node=name,
                    seen=value.unread,
                    why=f"what {', '.join(codes)} would have said of it is not known",
                    remedy=(f"sparkcluster preflight INVENTORY --json shows what {name} answered",),
                )


def _softened(finding: Finding, spec: Spec) -> Finding:
    reasons = [allow.reason for allow in spec.playbook.allow if allow.code == finding.code]
    if reasons:
        severity: Severity = "warning" if finding.severity == "error" else "info"
        why = f"{finding.why}; the playbook accepts it: {reasons[0]}"
        return dataclasses.replace(finding, severity=severity, why=why)
    if finding.code in spec.inventory.ignore and finding.severity == "error":
        return dataclasses.replace(finding, severity="warning", why=f"{finding.why}; the inventory ignores it")
    return finding
