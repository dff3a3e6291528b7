"""Checks, their registration and their execution; a check that raises becomes a finding and does not stop others.

The stage of a check is the input that it needs (``catalogue.STAGES``). Its scope selects nodes:

    node          all
    container     nodes whose ranks are containers; with runtime ``process`` the check is not run
    interconnect  nodes in a group of more than one
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from sparkcluster import engines
from sparkcluster.engines.base import Engine
from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.between import Hashes, Measured, Reach
from sparkcluster.facts.docker import Image
from sparkcluster.facts.model import Facts
from sparkcluster.facts.network import Hca
from sparkcluster.facts.running import Running
from sparkcluster.findings import Finding, Remedy, Severity, here, on_node, ordered, remedies
from sparkcluster.node.shared import LABEL_CLUSTER
from sparkcluster.spec import KeyPath, Spec
from sparkcluster.spec.powers import SECURITY
from sparkcluster.topology.model import Group, Link, Topology

Stage = Literal["written", "facts", "reach", "deep", "running"]
Scope = Literal["node", "container", "interconnect"]
DISRUPTIVE = frozenset({"netplan", "nvidia-runtime"})
"""Steps that `sparkcluster setup` refuses while ranks run on the node."""
UP = here("sparkcluster up INVENTORY")
DOWN = here("sparkcluster down INVENTORY")
AGAIN = here("sparkcluster down INVENTORY && sparkcluster up INVENTORY")
PREFLIGHT = here("sparkcluster preflight INVENTORY")
DEEP = here("sparkcluster preflight INVENTORY --deep")
NETPLAN_APPLY = on_node("sudo netplan apply")
REBOOT = on_node("sudo reboot")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Context:
    """Input of all checks; compared by identity, so that derived data can be cached.

    Attributes:
        facts: by node; empty if no node was contacted, as in ``lint``.
        topology: without groups if no topology could be built.
        reach, measured, running, hashes: empty unless the checks of that stage run.
    """

    spec: Spec
    facts: Mapping[str, Facts]
    topology: Topology
    reach: Reach = dataclasses.field(default_factory=Reach)
    measured: Measured = dataclasses.field(default_factory=Measured)
    running: Running = dataclasses.field(default_factory=Running)
    hashes: Hashes = dataclasses.field(default_factory=Hashes)

    @property
    def engine(self) -> Engine:
        """The engine of the playbook."""
        return engines.engine(self.spec.playbook.engine)

    @property
    def docker(self) -> bool:
        """Whether ranks are containers."""
        return self.spec.inventory.runtime.kind == "docker"

    def host(self, node: str) -> str:
        """The host of ``node`` in the inventory."""
        return next((each.host for each in self.spec.inventory.nodes if each.label == node), node)

    def called(self, group: Group) -> str:
        """The display name of ``group``."""
        return self.spec.inventory.called(group.name)

    def images(self) -> Iterator[tuple[str, Image]]:
        """The playbook's image on every node that has it, with the node's name."""
        for name, facts in self.facts.items():
            if self.docker and isinstance(facts.image, Image):
                yield name, facts.image

    def links(self) -> Iterator[tuple[str, Link]]:
        """Every twin in use with the name of its node."""
        for name, member in self.topology.members.items():
            for link in member.links:
                yield name, link

    def runs_rank(self, node: str) -> bool:
        """Whether a rank of this cluster runs on ``node`` and explains its ports and memory in use."""
        return any(
            rank.state == "running" and rank.labels.get(LABEL_CLUSTER) == self.spec.inventory.cluster
            for rank in read(self.facts[node].ranks) or ()
        )

    def hca_of(self, node: str, link: Link) -> Hca | None:
        """The HCA of a twin, from the facts of its node."""
        return self.facts[node].hca(link.hca or "")


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """An observation of a check; the check adds its code and reason.

    Attributes:
        at: path of the playbook key, such as ``("args", "quantization")``, for the finding's file and line.
        severity, remedy, step: None for the value of the check.
        live: whether ``remedy`` works while ranks run.
        values: values of the placeholders in the remedy, in addition to ``node``.
    """

    summary: str
    seen: str
    remedy: Sequence[Remedy | str] | None = None
    at: KeyPath | None = None
    severity: Severity | None = None
    node: str | None = None
    step: str | None = None
    live: bool = False
    values: Mapping[str, object] | None = None


Body = Callable[[Context], Iterable[Seen]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page:
    """Documentation of one code.

    Attributes:
        severity: the highest severity that it reports.
        title: the condition that a healthy cluster meets.
        why: the consequence if it does not.
        more: further paragraphs.
        needs: required fields of Facts; an unread field is a separate finding.
        source: report or recommendation that it is based on.
        remedies: the fix, with placeholders for the values of a finding.
        step: step of `sparkcluster setup` that fixes it; empty if there is none.
    """

    code: str
    severity: Severity = "error"
    stage: Stage = "facts"
    title: str
    why: str
    more: str = ""
    needs: tuple[str, ...] = ()
    source: str = ""
    remedies: tuple[Remedy, ...] = ()
    step: str = ""

    @property
    def remedy(self) -> str:
        """The fix as text."""
        return re.sub(r"\{(\w+)\}", lambda name: name[1].upper(), "; ".join(map(str, self.remedies)))

    @property
    def subject(self) -> str:
        """The letters before the number."""
        return self.code.rpartition("-")[0]

    def as_json(self) -> dict[str, Any]:
        """The page as ``checks --json`` prints it."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(Page)}
        del values["remedies"]
        return {**values, "needs": list(self.needs), "remedy": self.remedy}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check(Page):
    """A check: its page, its function, and the nodes that it applies to."""

    body: Body
    module: str = ""
    scope: Scope = "node"

    def concerns(self, context: Context, node: str) -> bool:
        """Whether it applies to ``node``."""
        if self.scope == "container":
            return context.docker
        if self.scope == "interconnect":
            return any(group.size > 1 for group in context.topology.groups if node in group.names)
        return True

    @property
    def engine(self) -> str | None:
        """The engine whose playbooks it checks; None for all engines."""
        found = re.match(rf"{engines.__name__}\.(\w+)\.", self.module)
        return engines.named(found[1]) if found else None

    def run(self, context: Context) -> list[Finding]:
        """Findings of this check; a crash is reported as a finding."""
        if self.scope == "container" and not context.docker:
            return []
        try:
            return [self.finding(context, seen) for seen in self.body(context)]
        except Exception as error:  # noqa: BLE001 - whatever it was, the other checks run
            return [
                Finding(
                    code=self.code,
                    severity="warning",
                    summary=f"this check crashed: {self.title}",
                    seen=f"{type(error).__name__}: {error}",
                    why="a bug in sparkcluster; it is unknown whether the cluster passes this check",
                    remedies=remedies(["report it with the output of sparkcluster preflight INVENTORY --json"]),
                )
            ]

    def finding(self, context: Context, seen: Seen) -> Finding:
        """``seen`` as a finding; its remedy accounts for steps that ``setup`` refuses while a rank runs."""
        file, line = _place(context.spec, seen.at)
        severity = seen.severity or self.severity
        values = {"node": seen.node or "", **(seen.values or {})}
        found = remedies(self.remedies if seen.remedy is None else seen.remedy, values)
        step = self.step if seen.step is None else seen.step
        if step in DISRUPTIVE and any(context.runs_rank(node) for node in context.facts if seen.node in {node, None}):
            later = f"sparkcluster down INVENTORY && sparkcluster setup INVENTORY --only {step} && {UP.text}"
            by_hand = (dataclasses.replace(found[0], instead=True), *found[1:])
            found = (*found, here(later, "permanent fix", instead=True)) if seen.live else (here(later), *by_hand)
        return Finding(
            self.code, severity, seen.summary, seen.node, seen.seen, self.why, found, file, line, step or None
        )


def _place(spec: Spec, at: KeyPath | None) -> tuple[str | None, int | None]:
    """File and line of a key or, if it is absent, of its section."""
    path = at or ()
    while path and path not in spec.places:
        path = path[:-1]
    return spec.places[path] if path else (None, None)


CATALOGUE: dict[str, Check] = {}


Subjects = Callable[[Context], Iterable[tuple[str, Any]]]


def check(
    code: str,
    title: str,
    *,
    remedy: Sequence[Remedy | str] | str = (),
    given: Callable[[Context], Any] = lambda context: context,
    each: Subjects | None = None,
    **declared: Any,
) -> Callable[[Callable[..., Iterable[Seen]]], Callable[..., Iterable[Seen]]]:
    """Register a check.

    The first paragraph of its docstring is the reason, ``Page.why``; the rest is ``Page.more``.

    Args:
        code: permanent code.
        title: the condition that a healthy cluster meets.
        remedy: default remedy of its findings; braces enclose names of ``Seen.values``.
        given: makes the argument of the function from the context.
        each: yields nodes and subjects, for a function that checks one subject of one node.
        declared: other fields of Check.
    """

    def register(judge: Callable[..., Iterable[Seen]]) -> Callable[..., Iterable[Seen]]:
        def body(context: Context) -> Iterator[Seen]:
            if each is None:
                yield from judge(given(context))
                return
            for node, subject in each(context):
                for seen in judge(context, node, subject):
                    yield dataclasses.replace(seen, node=node)

        if code in CATALOGUE:
            raise ValueError(f"two checks are called {code}")
        first, _, more = (inspect.getdoc(judge) or "").partition("\n\n")
        CATALOGUE[code] = Check(
            code=code,
            title=title,
            why=" ".join(first.split()).removesuffix("."),
            more=more,
            remedies=remedies([remedy] if isinstance(remedy, str) else remedy),
            body=body,
            module=judge.__module__,
            **declared,
        )
        return judge

    return register


# Checks that have subject, stage or scope in common.
container_check = functools.partial(check, scope="container")
node_check = functools.partial(check, each=lambda context: context.facts.items())
container_node_check = functools.partial(node_check, scope="container")
docker_check = functools.partial(
    container_check,
    each=lambda context: ((name, engine) for name, facts in context.facts.items() if (engine := read(facts.docker))),
)
gpu_check = functools.partial(
    container_check,
    each=lambda context: ((name, gpu) for name, facts in context.facts.items() for gpu in read(facts.gpus) or ()),
)
image_check = functools.partial(container_check, each=Context.images)
joined_check = functools.partial(check, scope="interconnect", needs=("interfaces", "hcas"))
"""Checks the interconnect once, if interfaces and HCAs were read: ``judge(context)``."""
member_check = functools.partial(joined_check, each=lambda context: context.topology.members.items())
"""A ``joined_check`` of each node in the topology: ``judge(context, node, member)``."""
link_check = functools.partial(joined_check, each=Context.links)
"""A ``joined_check`` of each link in use: ``judge(context, node, link)``."""
reach_check = functools.partial(check, stage="reach", scope="interconnect")
bandwidth_check = functools.partial(check, stage="deep", scope="interconnect")
interconnect_check = functools.partial(check, scope="interconnect")
"""Checks the interconnect once, whatever was read: ``judge(context)``."""


def load(*names: str) -> None:
    """Register the checks of engines, by default all engines; other checks register on import."""
    for name in names or engines.names():
        for module in engines.engine(name).checks:
            importlib.import_module(module)


def run(context: Context, checks: Iterable[Check]) -> list[Finding]:
    """Findings of ``checks``, errors first; severities are lowered as inventory and playbook accept."""
    chosen = list(checks)
    findings = [finding for chosen_check in chosen for finding in chosen_check.run(context)]
    return ordered(accepted(finding, context.spec) for finding in [*findings, *unread(context, chosen)])


UNREAD = "FACT-001"
UNPLANNED = "PLAN-001"
EXAMPLE = "SPEC-011"

# Readings that fail together with another reading that has its own check.
_FOLLOWS = {"image": "docker", "ranks": "docker", "driver": "gpus", "driver_module": "gpus"}


def unread(context: Context, checks: Iterable[Check]) -> Iterator[Finding]:
    """One finding per node and reading that failed and that ``checks`` need."""
    chosen = list(checks)
    for name, facts in context.facts.items():
        concerning = [waiting for waiting in chosen if waiting.concerns(context, name)]
        for field in dict.fromkeys(field for waiting in concerning for field in waiting.needs):
            value = getattr(facts, field)
            reported = context.docker and isinstance(getattr(facts, _FOLLOWS.get(field, ""), None), Unread)
            if isinstance(value, Unread) and not reported:
                codes = [waiting.code for waiting in concerning if field in waiting.needs]
                yield Finding(
                    code=UNREAD,
                    severity="warning",
                    summary=f"{field} of {name} could not be read",
                    node=name,
                    seen=value.unread,
                    why=f"{', '.join(codes)} could not be checked",
                    remedies=(here("sparkcluster preflight INVENTORY --json", f"shows what {name} answered"),),
                )


_TABLES = tomllib.loads(Path(__file__).with_name("pages.toml").read_text(encoding="utf-8"))
MERGED: dict[str, str] = _TABLES["merged"]
"""Old codes and their replacements. ``ignore`` and ``allow`` accept both, except for codes that protect against hostile
playbooks: for these, only the new code counts as consent."""


def without_check() -> Iterator[Page]:
    """Pages of errors that occur before checks can run."""
    for row in _TABLES["pages"]:
        fields = {name: value for name, value in row.items() if name != "remedy"}
        yield Page(remedies=remedies([row["remedy"]]), **fields)


def accepted(finding: Finding, spec: Spec) -> Finding:
    """``finding`` with a lower severity if inventory or playbook accept its code."""
    secure = finding.code in SECURITY
    names = {finding.code, *(old for old, code in MERGED.items() if code == finding.code and not secure)}
    allowed = () if secure else spec.playbook.allow
    reasons = [f"accepted by the playbook: {allow.reason}" for allow in allowed if allow.code in names]
    reasons += ["ignored by request"] if names & set(spec.inventory.ignore) else []
    if not reasons or finding.severity == "info":
        return finding
    severity: Severity = "warning" if finding.severity == "error" else "info"
    return dataclasses.replace(finding, severity=severity, why=f"{finding.why}; {reasons[0]}")
