"""Start every rank of a plan, watch them until each group's model has answered twice, or stop them all.

All ranks or none: whatever ends a launch, its ranks are removed on every node that can be reached, and
what is left on those that cannot is said.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkcluster.errors import Interrupted, LaunchError, LeaseLost, SparkclusterError
from sparkcluster.facts.model import Rank
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.launch.causes import cause
from sparkcluster.launch.readiness import Readiness
from sparkcluster.launch.verify import Answer, Endpoint, verify_group
from sparkcluster.launch.watching import INTERVAL_S, Watching
from sparkcluster.plan.model import Plan
from sparkcluster.report import Report, count
from sparkcluster.runtime import Changer, stop_steps
from sparkcluster.runtime.ranks import KILL_GRACE_S, STOP_GRACE_S
from sparkcluster.spec.playbook import Verify
from sparkcluster.topology.model import Topology

START_S = 180


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """What a launch needs to know besides the nodes themselves."""

    plan: Plan
    topology: Topology
    verify: Verify
    ready_timeout_s: float


def ranks_of(plan: Plan) -> dict[str, list[Rank]]:
    """The ranks that ``plan`` starts, by node, as facts would show them."""
    return {
        name: [Rank(name=one.name, state="running", labels=one.labels) for one in node.containers]
        for name, node in plan.nodes.items()
    }


def start(changer: Changer, plan: Plan, steps: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Start all ranks at once; where one cannot be started, none is left.

    Raises:
        LaunchError: with the node and the cause; LeaseLost as such.
    """
    outcomes = changer.attempt(steps, timeout_s=START_S)
    errors = {name: one for name, one in outcomes.items() if isinstance(one, SparkclusterError)}
    if not errors:
        return
    lost = next((error for error in errors.values() if isinstance(error, LeaseLost)), None)
    if lost:
        raise lost
    left = stop(changer, ranks_of(plan), grace_s=KILL_GRACE_S)
    name, error = next(iter(errors.items()))
    known = cause([error.message], None, False)
    raise LaunchError(
        error.message + (f" ({known.summary})" if known else "") + left_text(left),
        node=name,
        step="start",
        hint=(known.hint if known else None) or error.hint,
    )


def stop(
    changer: Changer, ranks: Mapping[str, Sequence[Rank]], *, grace_s: int = STOP_GRACE_S
) -> dict[str, SparkclusterError]:
    """Stop and remove ranks on all nodes, heads before workers; returns the nodes where that failed."""
    left: dict[str, SparkclusterError] = {}
    for head in (True, False):
        steps = {
            name: stop_steps([rank for rank in own if is_head(rank) is head], grace_s=grace_s)
            for name, own in ranks.items()
            if name not in left
        }
        outcomes = changer.attempt(steps, timeout_s=grace_s + 60)
        left |= {name: one for name, one in outcomes.items() if isinstance(one, SparkclusterError)}
    return left


def is_head(rank: Rank) -> bool:
    """Whether a rank drives its group; the driver is stopped first, so that it can drain."""
    return rank.labels.get("io.sparkcluster.rank", "0") == "0"


def left_text(left: Mapping[str, SparkclusterError]) -> str:
    """What could not be stopped, as the end of a message."""
    if not left:
        return ""
    return f"; left running on {', '.join(left)}: run sparkcluster down once it can be reached"


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


def await_answers(
    fleet: Fleet, launch: Launch, report: Report, *, clock: Callable[[], float] = time.monotonic
) -> dict[str, Answer]:
    """Watch until every group has answered twice; answers by group.

    Raises:
        LaunchError: a rank died, a node or link was lost, an answer was wrong, or the limit passed.
    """
    plan, topology = launch.plan, launch.topology
    readiness = Readiness(plan, topology, now=clock())
    requests = {name: watch_request(plan, topology, name) for name in plan.nodes}
    asking: dict[str, threading.Thread] = {}
    answers: dict[str, Answer] = {}
    failures: list[SparkclusterError] = []

    def ask(name: str) -> None:
        group = next(group for group in topology.groups if group.name == name)
        try:
            answers[name] = verify_group(fleet.hosts[group.head.name], endpoint_of(launch, name), launch.verify)
        except SparkclusterError as error:
            failures.append(error)

    with Watching(fleet, requests) as watching:
        while len(answers) < len(plan.groups):
            event = watching.next(0.2)
            now = clock()
            if event is not None:
                readiness.feed(event, now)
                report.progress(event.node, readiness.progress[event.node].text)
            for name in readiness.ready_groups() - asking.keys():
                report.step("verify", f"{name}: asking for an answer")
                asking[name] = threading.Thread(target=ask, args=(name,), daemon=True)
                asking[name].start()
            failure = readiness.failure(now)
            if failure:
                raise failure
            # A wrong answer may be a dying engine's: give its death a moment to be seen, and named.
            if failures and not settle(watching, readiness, report, clock):
                error = failures[0]
                head = error.node or plan.groups[0].nodes[0]
                known = cause(list(readiness.tail(head)), None, False)
                raise LaunchError(
                    error.message + (f" ({known.summary})" if known else ""),
                    node=error.node,
                    step=error.step,
                    hint=(known.hint if known else None) or error.hint,
                    log=readiness.tail(head),
                )
            if now - readiness.started > launch.ready_timeout_s:
                raise readiness.overdue(launch.ready_timeout_s)
    return answers


def settle(watching: Watching, readiness: Readiness, report: Report, clock: Callable[[], float]) -> bool:
    """Take in events for the time a death needs to be told; raises it when there is one."""
    limit = clock() + INTERVAL_S + 2
    while clock() < limit:
        event = watching.next(0.2)
        if event is not None:
            readiness.feed(event, clock())
            report.progress(event.node, readiness.progress[event.node].text)
        failure = readiness.failure(clock())
        if failure:
            raise failure
    return False


def endpoint_of(launch: Launch, group: str) -> Endpoint:
    """Where ``group`` is asked, from its own head."""
    return endpoint(launch.plan, launch.topology, group)


def endpoint(plan: Plan, topology: Topology, group: str) -> Endpoint:
    """Where the head of ``group`` reaches its own API."""
    place = next(one for one in topology.groups if one.name == group)
    local = "127.0.0.1" if place.api_host in {"0.0.0.0", "::"} else place.api_host  # noqa: S104 - compared, not bound
    node = plan.nodes[place.head.name]
    keyed = "VLLM_API_KEY" in node.secrets
    return Endpoint(
        url=f"http://{local}:{place.api_port}/v1",
        model=plan.model,
        key_file=node.containers[0].env_file if keyed else None,
    )


def run(
    fleet: Fleet,
    changer: Changer,
    launch: Launch,
    steps: Mapping[str, Sequence[dict[str, Any]]] | None,
    report: Report,
) -> dict[str, Answer]:
    """Start (unless ``steps`` is None: they run already), watch, verify; on any failure stop every rank."""
    try:
        if steps is not None:
            report.step("start", count(sum(len(n.containers) for n in launch.plan.nodes.values()), "rank"))
            start(changer, launch.plan, steps)
        report.step("watch", "until the model answers")
        return await_answers(fleet, launch, report)
    except LeaseLost:
        raise
    except LaunchError as error:
        if error.step == "start":
            raise
        left = stop(changer, ranks_of(launch.plan), grace_s=KILL_GRACE_S)
        raise LaunchError(
            error.message + left_text(left), node=error.node, step=error.step, hint=error.hint, log=error.log
        ) from error
    except KeyboardInterrupt:
        report.note("stopping what was started; press Ctrl-C again to leave it as it is")
        left = stop(changer, ranks_of(launch.plan), grace_s=KILL_GRACE_S)
        raise Interrupted(
            "interrupted; every rank was stopped" + left_text(left) if left else "interrupted; nothing is left running",
            step="launch",
        ) from None
