"""``doctor``: diagnose a running cluster; changes nothing on a node."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import Counter
from typing import Any

from sparkcluster.checks import run_stage
from sparkcluster.checks.check import AGAIN, CATALOGUE, UNPLANNED, Context
from sparkcluster.facts.collect import node_documents
from sparkcluster.facts.running import Running
from sparkcluster.findings import Finding, has_errors, ordered
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import status
from sparkcluster.inspect.ask import speed
from sparkcluster.inspect.cluster import View, connected
from sparkcluster.inspect.observing import ROUND_TRIP_S, begin_asking, begin_observing, observed, replies
from sparkcluster.inspect.preflight import examine
from sparkcluster.inspect.state import DEGRADED, DOWN, ON_DEMAND, SERVING, STARTING, UNKNOWN, is_unloaded, next_command
from sparkcluster.report import Report, count
from sparkcluster.runtime import failed_logs, secrets
from sparkcluster.spec import Spec
from sparkcluster.topology.model import EMPTY

# Enough to tell language from garbage output.
TOKENS = 48


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The result of ``doctor``.

    Attributes:
        running: ranks, logs, counters and answers.
        seconds: how long it took.
    """

    view: View
    running: Running
    findings: tuple[Finding, ...]
    seconds: float

    @functools.cached_property
    def status(self) -> status.Document:
        """The document of ``status`` for this cluster."""
        return status.document(self.view, self.running.replies, {}, {})

    @property
    def state(self) -> str:
        """The state of the cluster, as in ``status``."""
        return str(self.status["state"])

    @property
    def next(self) -> str:
        """The next command: ``up`` restarts dead groups; a group that only seems to serve has to go down first.

        If there are errors that ``up`` would refuse, the command that lists them.
        """
        errors = [each for each in self.findings if each.severity == "error"]
        running = {code for code, check in CATALOGUE.items() if check.stage == "running"}
        if self.state != STARTING and any(each.code not in running for each in errors):
            return next_command(UNKNOWN)
        if self.state in {SERVING, DEGRADED} and any(AGAIN in each.remedies for each in errors):
            return AGAIN.text
        return next_command(DOWN if self.state == DEGRADED else self.state, chats=self.view.spec.playbook.chats)

    @property
    def ok(self) -> bool:
        """Whether the cluster serves or is on demand, and no finding is an error."""
        return self.state in {SERVING, ON_DEMAND} and not has_errors(self.findings)

    def verdict(self) -> str:
        """One line for people."""
        found = self.status
        replies = [reply for reply in self.running.replies.values() if reply.ttft_s is not None]
        why = f": {found['why']}" if found["why"] else ""
        is_what = f"serves {found['model']}" if self.state == SERVING else f"is {self.state}{why}"
        parts = [f"{'the state of ' * (self.state == UNKNOWN)}{found['cluster']} {is_what}"]
        if replies:
            parts.append(speed(max(replies, key=lambda reply: reply.ttft_s or 0)))
        severities = Counter(finding.severity for finding in self.findings if finding.severity != "info")
        parts += [count(number, severity) for severity, number in sorted(severities.items())]
        return f"{', '.join([*parts, count(len(self.view.facts), 'node')])}, {self.seconds:.1f} s"

    def as_json(self) -> dict[str, Any]:
        """The document of ``doctor --json``."""
        return {
            "ok": self.ok,
            "cluster": self.view.spec.inventory.cluster,
            "state": self.state,
            "next": self.next,
            "findings": [finding.as_json() for finding in self.findings],
            "nodes": node_documents(self.view.spec, self.view.facts, self.view.collected.errors),
            "running": self.running.as_json(),
            "seconds": round(self.seconds, 3),
        }


def doctor(fleet: Fleet, spec: Spec, timeout_s: float, report: Report) -> Diagnosis:
    """Query every node and its ranks, and request a completion from every group, all within ``timeout_s``."""
    began = time.monotonic()
    until = began + timeout_s
    # A node whose sshd hangs must leave most of the time to the other nodes.
    view = connected(fleet, spec, report, kernel_log=True, limit_s=max(4.0, timeout_s * 0.4))
    if view.facts:
        report.step("inspect", "ranks, logs, counters and one answer")
    limit_s = max(3.0, until - time.monotonic() - ROUND_TRIP_S)
    asked = begin_asking(fleet, view, view.groups, limit_s, TOKENS)
    engine = next((group.engine for group in view.groups.values()), None)
    observations = observed(begin_observing(fleet, spec, view.facts, limit_s, engine), limit_s + ROUND_TRIP_S)
    answers = replies(asked, view, until - time.monotonic() + 1)
    kept = failed_logs.read(failed_logs.directory(spec.inventory.cluster))
    verified_at = view.newest.record.get("verified_at", 0.0) if view.newest else 0.0
    failed = kept.described(time.time()) if kept and kept.at_s >= verified_at else ""
    changed = {name: secrets.rotated(each, spec) for name, each in view.groups.items()}
    lost = next(filter(None, (secrets.lost_key(each, spec) for each in view.groups.values())), None)
    running = Running(observations, answers, view.newest, view.lease, failed, changed, lost)
    if view.facts:
        report.step("check", count(len(view.facts), "Spark"))
    findings = diagnose(examine(spec, view.collected, view.facts), running)
    return Diagnosis(view, running, findings, time.monotonic() - began)


def diagnose(view: View, running: Running) -> tuple[Finding, ...]:
    """Findings about a running cluster, most severe first. Pure.

    ``view`` comes from ``examine``: with findings, and the topology of the nodes that could be placed.
    """
    context = Context(view.spec, view.facts, view.topology or EMPTY, running=running)
    findings = [*view.findings, *run_stage(context, ["running"])]
    # lint reports these
    left_out = {code for code, check in CATALOGUE.items() if check.stage == "written"}
    left_out |= {UNPLANNED} if view.ranks.running else set()  # then no launch is planned
    # An unloaded model need not run, and loaded models make room for it.
    left_out |= {"RUN-001", "FIT-003"} if is_unloaded(view) else set()
    return tuple(ordered(finding for finding in findings if finding.code not in left_out))
