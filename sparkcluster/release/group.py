"""Start all ranks of several groups, watch each group until its model has answered twice, or stop its ranks.

All ranks or none: if the launch of a group fails, its ranks are removed on every node that can be reached, and the
others are reported. A node that stops reporting ends the command, but no rank.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster import engines
from sparkcluster.endpoint.find import endpoints
from sparkcluster.engines.base import Engine
from sparkcluster.engines.causes import cause
from sparkcluster.errors import CommandFailed, HostSilent, Interrupted, LaunchError, SparkclusterError
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fleet import Calls, failures
from sparkcluster.node.shared import connectable
from sparkcluster.plan.model import Plan
from sparkcluster.release.readiness import Readiness, warnings
from sparkcluster.release.stopping import ranks_of, stop, with_failed_stops
from sparkcluster.release.verify import verify_group
from sparkcluster.report import Report
from sparkcluster.runtime import Changer, failed_logs, observed
from sparkcluster.runtime.change import Step
from sparkcluster.runtime.watching import INTERVAL_S, Watching, watch_request
from sparkcluster.spec import Spec
from sparkcluster.topology.model import Topology

START_S = 180
# Every launch has its own limit.
WAIT_S = 7 * 86_400
Outcome = Reply | SparkclusterError


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """The launch of one group.

    Attributes:
        plan, topology: of this group alone.
        steps: steps that start its ranks, by node; None if they already run.
        left: whether failed ranks are kept for diagnosis.
    """

    group: str
    plan: Plan
    topology: Topology
    spec: Spec
    ready_timeout_s: float
    steps: Mapping[str, Sequence[Step]] | None
    left: bool = False


def start(changer: Changer, engine: Engine, steps: Mapping[str, Sequence[Step]]) -> None:
    """Start all ranks in parallel.

    Raises:
        LaunchError: with the node and the cause; ranks may be left on the other nodes.
        HostSilent, LeaseLost: as ``Changer.apply``.
    """
    try:
        changer.apply(steps, timeout_s=START_S)
    except CommandFailed as error:
        why = cause(engine, [error.message], None, False)
        text, hint = (error.message, None) if why is None else (f"{error.message} ({why.summary})", why.hint)
        raise LaunchError(text, node=error.node, step="start", hint=hint or error.hint) from error


def watch_group(plan: Plan, topology: Topology) -> dict[str, dict[str, Any]]:
    """The requests to the watch program on the nodes of a group."""
    group = topology.groups[0]
    api = {"api": [connectable(group.api_host), group.api_port]}
    return {
        member.name: watch_request(
            plan.nodes[member.name].containers,
            tail=2000,
            interfaces=[link.interface for link in member.links],
            **(api if member is group.head else {}),
        )
        for member in group.members
    }


def run(changer: Changer, launch: Launch, report: Report, cancelled: threading.Event) -> Reply:
    """Start the group (unless it runs already), watch and verify it; returns its last reply. A failure stops its ranks.

    Ranks are kept if the launch failed and ``left`` is set, or if a node stopped reporting: the next ``up`` continues
    with them. Ranks that another operator has taken over are not touched: their nodes refuse it.

    Raises:
        LaunchError: a rank died, a link was lost, an answer was wrong, or the limit passed.
        HostSilent: a node can no longer be watched.
        LeaseLost: a node refused, now or when stopping the ranks.
        Interrupted: ``cancelled`` was set.
    """
    names, began = ", ".join(launch.plan.nodes), time.monotonic()
    try:
        if launch.steps is not None:
            start(changer, engines.engine(launch.plan.engine), launch.steps)
        reply = _Attempt(changer, launch, report, cancelled).until_answered()
        took = {} if launch.steps is None else {"start_s": round(time.monotonic() - began, 1)}
        return dataclasses.replace(reply, footprint={**reply.footprint, **took})
    except SparkclusterError as error:
        if isinstance(error, HostSilent) or (launch.left and isinstance(error, LaunchError)):
            report.note(f"not stopping the ranks on {names}")
            raise
        if isinstance(error, LaunchError):
            report.note(f"stopping the ranks on {names}")
        # A group that has not answered has no requests in flight.
        failed = stop(changer, ranks_of(launch.plan), report, drain=False)
        final = with_failed_stops(error, failed, launch.plan.nodes)
        raise final from (None if final is error else error)


class _Attempt:
    """A group that was started, until its second answer."""

    def __init__(self, changer: Changer, launch: Launch, report: Report, cancelled: threading.Event) -> None:
        self._changer = changer
        self._launch = launch
        self._report = report
        self._cancelled = cancelled
        self._readiness = Readiness(launch.plan, launch.topology, now=time.monotonic())
        self._answers_until = self._readiness.started + launch.ready_timeout_s
        self._verifying: Calls[Reply] | None = None
        self._silent: set[str] = set()

    def until_answered(self) -> Reply:
        """Watch until the group has answered twice; returns its last reply."""
        requests = watch_group(self._launch.plan, self._launch.topology)
        with Watching(self._changer.fleet, requests) as watching:
            try:
                reply = self._watch(watching)
            except LaunchError as error:
                error.logs = {name: tuple(rank.lines) for name, rank in self._readiness.ranks.items()}
                self._note("failed")
                raise
        self._note("answered")
        taken = {} if self._launch.steps is None else self._readiness.taken
        return dataclasses.replace(reply, footprint={**self._readiness.footprint, **taken})

    def _note(self, outcome: str) -> None:
        """Record the outcome, for bundles."""
        ranks, now = self._readiness.ranks, time.monotonic()
        observed.note(
            self._changer.cluster,
            "launch",
            group=self._launch.group,
            outcome=outcome,
            seconds=round(now - self._readiness.started, 1),
            longest_silence_s={
                name: round(max(rank.longest_silence_s, now - rank.heard_at), 2) for name, rank in ranks.items()
            },
        )

    def _watch(self, watching: Watching) -> Reply:
        while True:
            if self._cancelled.is_set():
                raise Interrupted("interrupted", step="start")
            self._follow(watching)
            if self._verifying is None:
                if self._readiness.ready:
                    self._report.step("verify", "two answers")
                    self._verifying = Calls(self._verify, {self._launch.group: self._launch})
            elif not self._verifying.pending():
                outcome = self._verifying.wait(0)[self._launch.group]
                if isinstance(outcome, HostSilent):
                    raise self._changer.left(outcome)
                # A wrong answer may come from a dying engine: wait for its death, and report that instead.
                if self._readiness.dying or not isinstance(outcome, Reply):
                    self._await_death(watching)
                if isinstance(outcome, Reply):
                    return outcome
                raise self._readiness.unanswered(outcome)
            if time.monotonic() > self._answers_until:
                raise self._readiness.overdue(self._launch.ready_timeout_s)

    def _received(self, _kind: str, _text: str) -> None:
        """Extend the limit at each part of the answer: a model that generates is not overdue."""
        self._answers_until = max(self._answers_until, time.monotonic() + self._launch.spec.playbook.verify.timeout_s)

    def _verify(self, launch: Launch) -> Reply:
        """Ask the group twice."""
        endpoint = endpoints(launch.plan.as_json(), launch.plan.engine)[launch.group]
        return verify_group(
            self._changer.fleet.hosts[endpoint.head],
            endpoint,
            launch.spec,
            first_s=self._readiness.started + launch.ready_timeout_s - time.monotonic(),
            show=self._received,
        )

    def _follow(self, watching: Watching) -> None:
        """Process the next event, if there is one; raise a failure once it is certain."""
        event, now = watching.next(0.2), time.monotonic()
        if event is not None and event.gone is not None:
            if not self._readiness.dying:
                raise self._changer.left(HostSilent(event.gone.message, node=event.node, step="start"))
        elif event is not None:
            for rank in self._readiness.feed(event, now):
                # once the head's API is ready, late log lines of other ranks do not matter
                if not self._readiness.ready or rank is self._readiness.head:
                    self._report.progress(rank.node, rank.progress.text)
            slowest = self._readiness.slowest
            if slowest.lines:
                self._report.log(slowest.node, slowest.lines[-1])
            for text in warnings(event):
                self._report.note(text)
        self._tell_silence(now)
        failure = self._readiness.failure(now)
        if failure:
            raise failure

    def _tell_silence(self, now: float) -> None:
        """Report nodes that stopped reporting, and nodes that report again."""
        silent = self._readiness.silent(now)
        for node in silent.keys() - self._silent:
            self._report.note(f"{node}: no report for {silent[node]:.0f} s; its rank is left running")
        for node in self._silent - silent.keys():
            self._report.note(f"{node}: reports again")
        self._silent = {*silent}

    def _await_death(self, watching: Watching) -> None:
        """Process events for as long as it takes to notice a death, and raise it."""
        limit = time.monotonic() + INTERVAL_S + 2
        while time.monotonic() < limit:
            self._follow(watching)


def launch_groups(changer: Changer, launches: Sequence[Launch], report: Report) -> dict[str, Outcome]:
    """Launch every group; returns by name its reply or its error. The ranks of a failed group are stopped.

    Ctrl-C stops the groups that have not answered yet; the others keep serving. A second Ctrl-C leaves all ranks
    running.

    The last log lines of failed groups are kept (``runtime.failed_logs``).
    """
    cancelled = threading.Event()
    calls = Calls(lambda launch: run(changer, launch, report, cancelled), {each.group: each for each in launches})
    try:
        outcomes = calls.wait(WAIT_S)
    except KeyboardInterrupt:
        try:
            cancelled.set()
            report.note("stopping the started ranks; press Ctrl-C again to leave them running")
            outcomes = calls.wait(WAIT_S)
        except KeyboardInterrupt:
            pending = calls.pending()
            nodes = [node for launch in launches if launch.group in pending for node in launch.plan.nodes]
            text = "interrupted again" + (f"; ranks may still run on {', '.join(nodes)}" if nodes else "")
            left = Interrupted(text, step="start", hint="sparkcluster down INVENTORY")
            left.left_running = True
            raise left from None
    failed = failures(outcomes).values()
    if failed:
        report.failed()
    if logged := [error for error in failed if isinstance(error, LaunchError) and error.logs]:
        failed_logs.keep(failed_logs.directory(changer.cluster), logged)
    return outcomes
