"""Start every rank of a group, watch them until its model has answered twice, or stop them all.

All ranks or none: whatever ends the launch of a group, its ranks are removed on every node that can be reached, and
what is left on those that cannot is reported. Other groups are not touched.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkcluster import engines
from sparkcluster.endpoint.find import endpoints
from sparkcluster.engines.base import Engine
from sparkcluster.errors import CommandTimeout, Interrupted, LaunchError, LeaseLost, SparkclusterError
from sparkcluster.facts.model import Rank
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.launch.causes import cause
from sparkcluster.launch.readiness import Readiness, warnings
from sparkcluster.launch.verify import verify_group
from sparkcluster.launch.watching import INTERVAL_S, Watching
from sparkcluster.node.shared import LABEL_RANK
from sparkcluster.plan.model import Plan
from sparkcluster.report import Report
from sparkcluster.runtime import Changer, stop_steps
from sparkcluster.runtime.ranks import KILL_GRACE_S, STOP_GRACE_S
from sparkcluster.spec.playbook import Verify
from sparkcluster.topology.model import Topology

START_S = 180
# A node that said nothing for SILENCE_S gets one more chance to be cleaned, and nobody waits long for it.
SILENT_S = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """What the launch of one group needs to know besides the nodes themselves.

    Attributes:
        plan, topology: of this group alone.
        steps: what starts its ranks, by node; None where they run already.
    """

    group: str
    plan: Plan
    topology: Topology
    verify: Verify
    ready_timeout_s: float
    steps: Mapping[str, Sequence[dict[str, Any]]] | None


def ranks_of(plan: Plan) -> dict[str, list[Rank]]:
    """The ranks that ``plan`` starts, by node, as facts would show them."""
    return {
        name: [Rank(name=one.name, state="running", labels=one.labels) for one in node.containers]
        for name, node in plan.nodes.items()
    }


def start(changer: Changer, engine: Engine, steps: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Start all ranks at once.

    Raises:
        LaunchError: with the node and the cause; ranks may be left on the others.
        LeaseLost: a node refused.
    """
    outcomes = changer.attempt(steps, timeout_s=START_S)
    errors = {name: one for name, one in outcomes.items() if isinstance(one, SparkclusterError)}
    if not errors:
        return
    lost = next((error for error in errors.values() if isinstance(error, LeaseLost)), None)
    if lost:
        raise lost
    name, error = next(iter(errors.items()))
    known = cause(engine, [error.message], None, False)
    raise LaunchError(
        error.message + (f" ({known.summary})" if known else ""),
        node=name,
        step="start",
        hint=(known.hint if known else None) or error.hint,
    )


def stop(
    changer: Changer,
    ranks: Mapping[str, Sequence[Rank]],
    *,
    grace_s: int = STOP_GRACE_S,
    silent: str | None = None,
) -> dict[str, SparkclusterError]:
    """Stop and remove ranks on all nodes, heads before workers; returns the nodes where that failed.

    On ``silent``, a node that was just found hanging, it is tried last and not for long.
    """
    left: dict[str, SparkclusterError] = {}
    # Once its driver is gone a worker has nothing to drain, but Ray's would wait 30 s for it all the same.
    for head, patience_s in ((True, grace_s), (False, min(grace_s, KILL_GRACE_S))):
        steps = {
            name: stop_steps([rank for rank in own if is_head(rank) is head], grace_s=patience_s)
            for name, own in ranks.items()
            if name not in left
        }
        hanging = {silent: steps.pop(silent)} if silent is not None and silent in steps else {}
        outcomes = changer.attempt(steps, timeout_s=patience_s + 60)
        outcomes |= changer.attempt(hanging, timeout_s=SILENT_S)
        left |= {name: one for name, one in outcomes.items() if isinstance(one, SparkclusterError)}
    return left


def is_head(rank: Rank) -> bool:
    """Whether a rank drives its group; the driver is stopped first, so that it can drain."""
    return rank.labels.get(LABEL_RANK, "0") == "0"


def left_text(left: Mapping[str, SparkclusterError]) -> str:
    """What could not be stopped, as the end of a message."""
    if not left:
        return ""
    return f"; left running on {', '.join(left)}: run sparkcluster down once it can be reached"


def ended(error: SparkclusterError, left: Mapping[str, SparkclusterError]) -> SparkclusterError:
    """``error`` with what is left said; LeaseLost where a node refused, since then somebody else decides there."""
    lost = next((one for one in (error, *left.values()) if isinstance(one, LeaseLost)), None)
    final = lost or error
    final.message += left_text({name: one for name, one in left.items() if not isinstance(one, LeaseLost)})
    final.args = (final.message,)
    return final


def watch_request(plan: Plan, topology: Topology, node: str, *, tail: int = 2000) -> dict[str, Any]:
    """What the watch program on ``node`` is asked."""
    group = topology.group_of(node)
    head = group.head.name == node
    return {
        "ranks": [
            {
                "name": one.name,
                "runtime": "process" if one.image is None else "docker",
                "rank_dir": one.rank_dir,
            }
            for one in plan.nodes[node].containers
        ],
        "tail": tail,
        "follow": True,
        "interval_s": INTERVAL_S,
        "interfaces": [link.interface for link in topology.members[node].links],
        "engine_host": group.api_host if head else None,
        "engine_port": group.api_port if head else None,
    }


class Verifying:
    """Asks the group twice, in a thread of its own, once it is ready.

    Attributes:
        reply: the last reply, once it has answered twice.
        failure: what went wrong instead.
    """

    def __init__(self, fleet: Fleet, launch: Launch) -> None:
        self.reply: Reply | None = None
        self.failure: SparkclusterError | None = None
        self._fleet = fleet
        self._launch = launch
        self._begun = False
        self._defect: Exception | None = None

    def begin(self, report: Report) -> None:
        """Ask, where that has not begun yet."""
        if not self._begun:
            self._begun = True
            report.step("verify", f"{self._launch.group}: asking for an answer")
            threading.Thread(target=self._verify, daemon=True).start()

    def _verify(self) -> None:
        endpoint = endpoints(self._launch.plan.as_json(), self._launch.plan.engine)[self._launch.group]
        try:
            self.reply = verify_group(self._fleet.hosts[endpoint.head], endpoint, self._launch.verify)
        except SparkclusterError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits
            self._defect = error

    def done(self) -> bool:
        """Whether the group has answered; raises what is no failure but a defect."""
        if self._defect:
            raise self._defect
        return self.reply is not None


def await_answer(
    fleet: Fleet, launch: Launch, report: Report, over: threading.Event, *, clock: Callable[[], float] = time.monotonic
) -> Reply:
    """Watch until the group has answered twice; its last reply.

    Raises:
        LaunchError: a rank died, a node or link was lost, an answer was wrong, or the limit passed.
        Interrupted: ``over`` was set.
    """
    plan, topology = launch.plan, launch.topology
    readiness = Readiness(plan, topology, now=clock())
    verifying = Verifying(fleet, launch)
    with Watching(fleet, {name: watch_request(plan, topology, name) for name in plan.nodes}) as watching:
        try:
            until_answered(watching, readiness, verifying, launch, over, report=report, clock=clock)
        except LaunchError as error:
            error.logs = readiness.logs()
            raise
    if verifying.reply is None:  # pragma: no cover - until_answered returns with a reply
        raise LaunchError("the group was not asked", step="verify")
    return verifying.reply


def until_answered(
    watching: Watching,
    readiness: Readiness,
    verifying: Verifying,
    launch: Launch,
    over: threading.Event,
    *,
    report: Report,
    clock: Callable[[], float],
) -> None:
    """Return once the group has answered twice; LaunchError where that will not be."""
    while not verifying.done():
        if over.is_set():
            raise Interrupted("interrupted", step="launch")
        follow(watching, readiness, report, clock)
        if launch.group in readiness.ready_groups():
            verifying.begin(report)
        if verifying.failure:
            # A wrong answer may be a dying engine's: give its death a moment to be seen, and named.
            await_death(watching, readiness, report, clock)
            raise unanswered(verifying.failure, readiness, launch.plan)
        if clock() - readiness.started > launch.ready_timeout_s:
            raise readiness.overdue(launch.ready_timeout_s)
    if readiness.dying:
        await_death(watching, readiness, report, clock)


def follow(watching: Watching, readiness: Readiness, report: Report, clock: Callable[[], float]) -> None:
    """Take in the next event, or none; raises the failure that it made certain."""
    event = watching.next(0.2)
    if event is not None:
        readiness.feed(event, clock())
        report.progress(event.node, readiness.progress[event.node].text)
        for text in warnings(event):
            report.note(text)
    failure = readiness.failure(clock())
    if failure:
        raise failure


def await_death(watching: Watching, readiness: Readiness, report: Report, clock: Callable[[], float]) -> None:
    """Take in events for the time a death needs to be told; raises it when there is one."""
    limit = clock() + INTERVAL_S + 2
    while clock() < limit:
        follow(watching, readiness, report, clock)


def unanswered(error: SparkclusterError, readiness: Readiness, plan: Plan) -> LaunchError:
    """What a missing or wrong answer means, with what the head's log says of it."""
    head = error.node or plan.groups[0].nodes[0]
    known = cause(readiness.engine, list(readiness.tail(head)), None, False)
    return LaunchError(
        error.message + (f" ({known.summary})" if known else ""),
        node=error.node,
        step=error.step,
        hint=(known.hint if known else None) or error.hint,
        log=readiness.tail(head),
    )


def run(fleet: Fleet, changer: Changer, launch: Launch, report: Report, over: threading.Event) -> Reply:
    """Start the group (unless it runs already), watch it, verify it; on any failure stop its ranks.

    Ranks that another operator has taken over meanwhile are not touched: their nodes refuse it.

    Raises:
        LaunchError: with the cause.
        LeaseLost: a node refused, now or when the ranks were to be stopped.
        Interrupted: ``over`` was set.
    """
    try:
        if launch.steps is not None:
            start(changer, engines.engine(launch.plan.engine), launch.steps)
        return await_answer(fleet, launch, report, over)
    except SparkclusterError as error:
        silent = error.node if isinstance(error.__cause__, CommandTimeout) else None
        left = stop(changer, ranks_of(launch.plan), grace_s=KILL_GRACE_S, silent=silent)
        final = ended(error, left)
        raise final from (None if final is error else error)
    except BaseException:
        stop(changer, ranks_of(launch.plan), grace_s=KILL_GRACE_S)
        raise
