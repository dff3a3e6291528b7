"""What a check is, and how all of them are run: none may raise, and none may stop the others."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sparkcluster.facts.model import Facts
from sparkcluster.findings import Finding, Severity
from sparkcluster.spec import Spec
from sparkcluster.topology.model import Link, Member, Topology


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """What every check may look at."""

    spec: Spec
    facts: Mapping[str, Facts]
    topology: Topology

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
    """What one check saw; code and reason are the check's own."""

    severity: Severity
    node: str | None
    summary: str
    seen: str
    remedy: tuple[str, ...] = ()


Body = Callable[[Context], Iterable[Seen]]


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One check: ``title`` says what holds on a healthy cluster, ``why`` what happens where it does not."""

    code: str
    title: str
    why: str
    body: Body

    def run(self, context: Context) -> list[Finding]:
        """Findings of this check; one that crashes is a finding that blames the check."""
        try:
            return [
                Finding(self.code, one.severity, one.summary, one.node, one.seen, self.why, one.remedy)
                for one in self.body(context)
            ]
        except Exception as error:  # noqa: BLE001 - whatever it was, the other checks go on
            return [
                Finding(
                    code=self.code,
                    severity="warning",
                    summary=f"the check itself failed: {self.title}",
                    seen=f"{type(error).__name__}: {error}",
                    why="a defect of sparkcluster; whether this holds is not known",
                    remedy=("report it with the output of sparkcluster plan --json",),
                )
            ]


CATALOGUE: dict[str, Check] = {}


def check(code: str, title: str) -> Callable[[Body], Body]:
    """Register a check under a code that never changes; its docstring becomes the reason."""

    def register(body: Body) -> Body:
        if code in CATALOGUE:
            raise ValueError(f"two checks are called {code}")
        why = " ".join((inspect.getdoc(body) or "").split())
        CATALOGUE[code] = Check(code, title, why, body)
        return body

    return register


def run(context: Context, checks: Iterable[Check]) -> list[Finding]:
    """Findings of ``checks``, softened as inventory and playbook ask for, the gravest first."""
    findings = [_softened(finding, context.spec) for one in checks for finding in one.run(context)]
    order: Sequence[Severity] = ("error", "warning", "info")
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def _softened(finding: Finding, spec: Spec) -> Finding:
    reasons = [allow.reason for allow in spec.playbook.allow if allow.code == finding.code]
    if reasons:
        severity: Severity = "warning" if finding.severity == "error" else "info"
        why = f"{finding.why}; the playbook accepts it: {reasons[0]}"
        return dataclasses.replace(finding, severity=severity, why=why)
    if finding.code in spec.inventory.ignore and finding.severity == "error":
        return dataclasses.replace(finding, severity="warning", why=f"{finding.why}; the inventory ignores it")
    return finding
