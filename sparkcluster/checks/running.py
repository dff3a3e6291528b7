"""Checks of a cluster that runs or should run: its ranks, its engine, and a real answer."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from sparkcluster.checks.check import AGAIN, DEEP, DOWN, PREFLIGHT, UP, Seen
from sparkcluster.checks.gpu import waits_in_collective
from sparkcluster.checks.model import VERIFY
from sparkcluster.checks.running_cluster import LOGS, RunningCluster, clipped, running_check
from sparkcluster.endpoint.dead import busy as is_busy
from sparkcluster.endpoint.dead import dead, stall_limit_s
from sparkcluster.endpoint.find import RESTART
from sparkcluster.endpoint.judge import garbage
from sparkcluster.engines.causes import LINK, no_carrier
from sparkcluster.engines.signature import plain
from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.running import GpuSample, RankSeen, Reply
from sparkcluster.findings import Remedy, edit, here


@running_check(
    "RUN-001",
    "The cluster is running",
    remedy=[UP],
)
def runs(cluster: RunningCluster) -> Iterator[Seen]:
    """Without ranks, nothing is served, and other checks of the cluster do not apply."""
    # A node that could not be inspected may have ranks.
    seen_on = {name for name, observation in cluster.inspected.items() if not isinstance(observation.ranks, Unread)}
    blind = [node.label for node in cluster.spec.inventory.nodes if node.label not in seen_on]
    if cluster.ranks or not seen_on:
        return
    name, lease = cluster.spec.inventory.cluster, cluster.running.lease
    recorded = f"release {cluster.recorded.number} is recorded" if cluster.recorded else "no release is recorded"
    seen = f"no rank of it on {'any node' if not blind else 'any node that could be queried'}; {recorded}"
    if lease:
        yield Seen(lease.describe(name), seen, ("wait until it has finished",), severity="warning")
        return
    failed = cluster.running.failed
    remedy = (here("sparkcluster logs INVENTORY --failed"), UP) if failed else None
    yield Seen(f"{name} is not running", "; ".join(part for part in (seen, failed) if part), remedy)


@running_check(
    "RUN-002",
    "The model answers",
    remedy=(LOGS, DOWN, UP),
)
def answers(cluster: RunningCluster) -> Iterator[Seen]:
    """A cluster that returns no token does not serve, even if its health endpoint reports success.

    Tested by one streamed completion on the head; the first token in any field (content, reasoning or a tool call)
    counts. Not reported if another check reports the reason.
    """
    lease = cluster.running.lease
    for group, reply in _unexplained(cluster):
        starting = not any(cluster.ready(rank) for _, rank in cluster.groups[group])
        if reply.problem == "refused" and starting and lease is not None:
            summary = f"{cluster.called(group)} does not answer yet: {lease.describe(cluster.spec.inventory.cluster)}"
            yield Seen(summary, reply.message, (LOGS,), severity="warning", node=reply.head)
            continue
        key = (here(RESTART, "starts its ranks with the key of the inventory"), LOGS)
        remedy = key if reply.problem == "unauthorized" else None
        yield Seen(f"{cluster.called(group)} does not answer", clipped(reply.message), remedy, node=reply.head)


def _unexplained(cluster: RunningCluster) -> Iterator[tuple[str, Reply]]:
    """Groups without a first token whose reason other checks do not report."""
    for group, reply in cluster.replies.items():
        if group not in cluster.failed or group in cluster.ended or not cluster.unexplained_end(group):
            continue
        if reply.problem == "engine-dead" or cluster.hangs(reply) or _busy(cluster, reply) or _partial(reply):
            continue
        ranks = cluster.groups.get(group, [])
        if ranks and not cluster.unplaced(group) and not any(_stalled(cluster, rank) for _, rank in ranks):
            yield group, reply


def _partial(reply: Reply) -> bool:
    """Whether the answer began but did not end within the time limit."""
    return reply.problem == "timeout" and reply.ttft_s is not None


@running_check(
    "RUN-003",
    "The engine generates tokens while requests run",
    source="MiaAI-Lab/DeepSeek-v4-Flash-DSpark#10",
    remedy=(DOWN, DEEP, UP),
)
def hung(cluster: RunningCluster) -> Iterator[Seen]:
    """A collective that one rank does not join hangs all of them: no token, no error, and a busy GPU.

    Detected by the engine's token counters, read twice while a request of doctor gets no token. Waiting GPUs show 90 %
    or more at 22 to 26 W; a single idle GPU in the group is the suspect. Without a suspect this is a warning until the
    counters have not changed for longer than a prefill may take: a prompt of 256K tokens needs minutes.
    """
    yield from cluster.causes_of("RUN-003")
    for group, reply in cluster.replies.items():
        figures = cluster.hangs(reply)
        if figures is None or group in cluster.ended or group in cluster.unlinked:
            continue
        samples = {name: gpus for name, _ in cluster.groups.get(group, []) if (gpus := cluster.gpus(name))}
        spinning = [name for name, gpus in samples.items() if all(map(waits_in_collective, gpus))]
        idle = [name for name in samples if name not in spinning]
        suspect = idle[0] if spinning and len(idle) == 1 else None
        drawn = [_drawn(name, gpus[-1]) for name, gpus in samples.items()]
        seen = "; ".join([figures, *drawn])
        if not spinning and not dead([], reply):
            limit_s = stall_limit_s(reply.context)
            summary = f"{cluster.called(group)} generates no tokens: it hangs or prefills a long prompt"
            seen += f"; a prefill may take {limit_s:.0f} s"
            remedy = (here(f"sparkcluster doctor INVENTORY --timeout {limit_s + 20:.0f}", "to tell which"), LOGS)
            yield Seen(summary, seen, remedy, severity="warning", node=reply.head)
            continue
        summary = f"{cluster.called(group)} hangs: its engine accepts requests and generates no tokens"
        if suspect:
            summary += f", and {suspect} idles while the others wait"
        yield Seen(summary, seen, node=suspect or reply.head)


def _drawn(node: str, sample: GpuSample) -> str:
    figures = ((sample.utilization_percent, "%"), (sample.power_w, "W"), (sample.sm_clock_mhz, "MHz"))
    return f"{node}: " + ", ".join(f"{value:.0f} {unit}" for value, unit in figures if value is not None)


@running_check(
    "RUN-004",
    "The answer is not garbage",
    remedy="`moe-backend: marlin` in the playbook; if it is already set, verify the weights and clear the caches",
)
def language(cluster: RunningCluster) -> Iterator[Seen]:
    """Kernels that are wrong for sm_121 return `!!!!!` with status 200; only the text shows the fault."""
    for group, reply in cluster.replies.items():
        if reply.problem and not reply.text:
            continue
        wrong = garbage(reply.text)
        if wrong is None and (reply.ttft_s is not None or reply.problem):
            continue
        remedy: list[Remedy | str] = [LOGS, AGAIN]
        if wrong:
            first = cluster.engine.garbage_remedy(cluster.spec.playbook, cluster.lines(group))
            remedy = [first] if first else [VERIFY, here(f"{DOWN.text} && {UP.text} --clear-caches")]
        what = "answers, but its output is garbage" if wrong else "returns empty answers"
        tokens = f"{reply.tokens} tokens without text" if reply.tokens else "no text"
        yield Seen(f"{cluster.called(group)} {what}", wrong or tokens, remedy, node=reply.head)


@running_check(
    "RUN-016",
    "The engine behind the API is alive",
    remedy=(LOGS, UP),
)
def engine(cluster: RunningCluster) -> Iterator[Seen]:
    """The API server survives its engine: it returns 200 for /health and 500 for every completion."""
    for group, reply in cluster.replies.items():
        if reply.problem != "engine-dead" or group in cluster.ended or not cluster.unexplained_end(group):
            continue
        status = cluster.inspected[reply.head].health if reply.head in cluster.inspected else None
        health = "" if status is None else f"/health: {status}"
        health = "/health does not answer" if isinstance(status, Unread) else health
        log = cluster.death(cluster.lines(group))
        seen = clipped("; ".join(part for part in (reply.message, health, log) if part))
        yield Seen(f"the engine of {cluster.called(group)} is dead behind its API", seen, node=reply.head)


@running_check(
    LINK,
    "Every link of a failed group has a carrier",
    remedy="check the cable and the other Spark, then `sparkcluster up`",
)
def linked(cluster: RunningCluster) -> Iterator[Seen]:
    """Without a link, all ranks of the group wait for each other or abort; errors in their logs are consequences."""
    for group, (name, interface) in cluster.unlinked.items():
        why = no_carrier(interface, name)
        ended = ", ".join(f"{node}: {rank.state}" for node, rank in cluster.ended.get(group, ()))
        seen = f"{interface} of {name} has no carrier; {cluster.called(group)} was started on it"
        seen += f"; {ended}" if ended else ""
        remedy = (why.hint or "", dataclasses.replace(UP, note="with the link up again"))
        yield Seen(f"{name} has {why.summary}", seen, remedy, node=name)


@running_check(
    "RUN-017",
    "Ranks do not wait for each other during compilation",
    remedy=(DOWN, here("sparkcluster up INVENTORY --clear-caches")),
)
def stalled(cluster: RunningCluster) -> Iterator[Seen]:
    """With a stale compile or autotune cache, one node skips a collective step, and all others wait for it.

    A healthy engine prints the line once or twice while it compiles; here it is the last line.
    """
    for group, ranks in cluster.groups.items():
        if group in cluster.replies and group not in cluster.failed:
            continue
        for name, rank in ranks:
            if line := _stalled(cluster, rank):
                summary = f"the ranks of {cluster.called(group)} wait for each other while they compile"
                yield Seen(summary, clipped(line), node=name)
                break


def _stalled(cluster: RunningCluster, rank: RankSeen) -> str | None:
    if cluster.engine.stalled is None:
        return None
    pattern = re.compile(cluster.engine.stalled)
    lines = [line for line in plain(rank.lines) if line.strip()]
    last = [line for line in lines[-3:] if pattern.search(line)]
    before = " ".join(line for line in lines[-60:] if not pattern.search(line))
    compiling = re.search(r"(?i)autotun|torch[._]compile|inductor|cuda ?graph|compil(?:ing|ation)", before)
    return last[-1].strip() if last and compiling and rank.running and not cluster.ready(rank) else None


@running_check(
    "RUN-022",
    "Every node could be inspected",
    severity="warning",
    source="sparkcluster: unknown is not healthy",
    remedy=[PREFLIGHT],
)
def inspected(cluster: RunningCluster) -> Iterator[Seen]:
    """A node that could not be inspected may be broken."""
    for name, observation in cluster.running.observations.items():
        readings: list[tuple[str, object]] = [(f"the ranks on {name} could not be inspected", observation)]
        if not isinstance(observation, Unread):
            docker = cluster.facts[name].docker if name in cluster.facts else None
            by_docker = isinstance(docker, Unread)  # reported by HOST-001
            readings = [] if by_docker else [(f"the ranks on {name} could not be listed", observation.ranks)]
            readings += [] if cluster.ended else [(f"Ray on {name} could not be queried", observation.ray)]
            ranks = read(observation.ranks) or ()
            readings += [(f"the log of {rank.name} could not be read", rank.log) for rank in ranks]
        for summary, value in readings:
            if isinstance(value, Unread):
                yield Seen(summary, clipped(value.unread), node=name)


@running_check(
    "RUN-023",
    "The engine is not overloaded",
    severity="warning",
    remedy=(
        edit("raise {argument} in the playbook, or send fewer parallel requests"),
        here("sparkcluster doctor INVENTORY --timeout 120"),
    ),
)
def busy(cluster: RunningCluster) -> Iterator[Seen]:
    """An engine with too many parallel requests queues new requests, which then wait for a long time."""
    for group, reply in cluster.replies.items():
        if _busy(cluster, reply):
            last = cluster.counters(reply.head)[-1]
            seen = f"{last.running or 0:.0f} running, {last.waiting or 0:.0f} waiting"
            seen += f"; no token within {reply.limit_s:.0f} s"
            argument = cluster.engine.common_arguments.get("requests", "the requests at the same time")
            summary = f"{cluster.called(group)} is busy and queues new requests"
            yield Seen(summary, seen, node=reply.head, values={"argument": argument})


def _busy(cluster: RunningCluster, reply: Reply) -> bool:
    counters = cluster.counters(reply.head)
    if reply.problem != "timeout" or reply.ttft_s is not None or len(counters) < 2:
        return False
    return (counters[-1].generated or 0) > (counters[0].generated or 0) or is_busy(reply)
