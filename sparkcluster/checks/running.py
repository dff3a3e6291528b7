"""Checks of a cluster that runs, or should: its ranks, Ray's members, its records, and a real answer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkcluster.checks import members, symptoms
from sparkcluster.checks.diagnosis import (
    DOWN,
    LOGS,
    UP,
    broken,
    causes,
    clipped,
    counters,
    ended_ranks,
    gpus,
    group_nodes,
    groups,
    hangs,
    of,
    ready,
    silent,
    unplaced,
)
from sparkcluster.checks.registry import Context, Seen, running_check
from sparkcluster.endpoint.dead import dead, stall_limit_s
from sparkcluster.endpoint.judge import garbage
from sparkcluster.engines.signature import plain
from sparkcluster.facts.model import Unread
from sparkcluster.facts.running import RankSeen, Reply

__all__ = ["members", "symptoms"]

# What a spinning collective draws on a GB10: it waits at full utilisation (MiaAI-Lab/DeepSeek-v4-Flash-DSpark#10).
SPIN_PERCENT, SPIN_LEAST_W, SPIN_MOST_W = 90.0, 20.0, 30.0


@running_check(
    "RUN-001",
    "The cluster is running",
    remedy="sparkcluster up INVENTORY",
)
def runs(context: Context) -> Iterator[Seen]:
    """Without a rank nothing is served, and no other check of the cluster applies."""
    running = of(context)
    # A node that could not be inspected may have ranks.
    seen_on = {name for name, look in running.seen() if not isinstance(look.ranks, Unread)}
    blind = [node.label for node in context.spec.inventory.nodes if node.label not in seen_on]
    if any(True for _ in running.ranks()) or not seen_on:
        return
    cluster = context.spec.inventory.cluster
    recorded = f"release {running.recorded.number} is recorded" if running.recorded else "no release is recorded"
    seen = f"no rank of it on {'any node' if not blind else 'any node that could be queried'}; {recorded}"
    if running.lease:
        yield Seen(None, running.lease.describe(cluster), seen, ("wait for it to end",), severity="warning")
        return
    yield Seen(None, f"nothing of {cluster} runs", seen, (UP,))


@running_check(
    "RUN-002",
    "The model answers",
    remedy="read the engine's log, then `sparkcluster down` and `up`",
)
def answers(context: Context) -> Iterator[Seen]:
    """A cluster that returns no first token does not serve, whatever its health endpoint reports.

    Tested by one streamed completion on the head; what counts is the first token of any field (content, reasoning or a
    tool call). Not reported if another check reports the reason.
    """
    for group, reply in _unexplained(context):
        starting = not any(ready(context, rank) for _, rank in groups(context)[group])
        lease = of(context).lease
        if reply.problem == "refused" and starting and lease is not None:
            summary = f"{group} does not answer yet: {lease.describe(context.spec.inventory.cluster)}"
            yield Seen(reply.head, summary, reply.message, (LOGS,), severity="warning")
            continue
        remedy: tuple[str, ...] = (LOGS, DOWN, UP)
        if reply.problem == "unauthorized":
            remedy = (f"{DOWN}, then up: its ranks were started with another key",)
        yield Seen(reply.head, f"{group} does not answer", clipped(reply.message), remedy)


def _unexplained(context: Context) -> Iterator[tuple[str, Reply]]:
    """Groups without a first token whose reason no other check of this module reports."""
    lost = {rank.group for _, rank in ended_ranks(context)}
    explained = {found.rank.group for found in causes(context)}
    for group, reply in of(context).replies.items():
        if not broken(reply) or group in lost | explained or group not in groups(context):
            continue
        if reply.problem == "engine-dead" or hangs(context, reply) or _busy(context, reply) or _partial(reply):
            continue
        if any(_stalled(context, rank) for _, rank in groups(context)[group]) or unplaced(context, group):
            continue
        yield group, reply


def _partial(reply: Reply) -> bool:
    """Whether a long answer only did not end within the limit."""
    return reply.problem == "timeout" and reply.ttft_s is not None


@running_check(
    "RUN-003",
    "Tokens move while requests run",
    source="MiaAI-Lab/DeepSeek-v4-Flash-DSpark#10",
    remedy="`sparkcluster preflight --deep` for the rails, then `sparkcluster down` and `up`",
)
def hung(context: Context) -> Iterator[Seen]:
    """A collective that one rank does not join hangs all of them: no token, no error, and a busy GPU.

    Detected by the engine's token counters, read twice while a request of doctor gets no token. Ranks that wait
    show 90 % or more at 22 to 26 W; an idle one beside them is the suspect. Without a suspect it is a warning until
    no counter has moved for longer than a prefill may take: a prompt of 256K tokens moves none for minutes.
    """
    for found in causes(context):
        if found.cause.code == "RUN-003":
            yield Seen(found.node, found.cause.summary, clipped(found.cause.line), (found.cause.hint or LOGS,))
    for group, reply in of(context).replies.items():
        figures = hangs(context, reply)
        if figures is None or any(rank.group == group for _, rank in ended_ranks(context)):
            continue
        nodes = group_nodes(context, group)
        spinning = [name for name in nodes if _spins(context, name)]
        idle = [name for name in nodes if gpus(context, name) and name not in spinning]
        suspect = idle[0] if spinning and len(idle) == 1 else None
        drawn = [_drawn(context, name) for name in nodes if gpus(context, name)]
        seen = "; ".join([figures, *drawn])
        if not spinning and not dead([], reply):
            limit_s = stall_limit_s(reply.context)
            summary = f"{group} generates no tokens: it hangs, or is in the prefill of a long prompt"
            seen += f"; a prefill may take {limit_s:.0f} s"
            remedy = (f"sparkcluster doctor INVENTORY --timeout {limit_s + 20:.0f}   to tell which", LOGS)
            yield Seen(reply.head, summary, seen, remedy, severity="warning")
            continue
        summary = f"{group} hangs: its engine accepts requests and generates no tokens"
        if suspect:
            summary += f", and {suspect} idles while the others wait"
        remedy = ("sparkcluster preflight INVENTORY --deep", f"{DOWN}, then {UP}")
        yield Seen(suspect or reply.head, summary, seen, remedy)


def _spins(context: Context, node: str) -> bool:
    samples = gpus(context, node)
    return bool(samples) and all(
        (sample.utilization_percent or 0) >= SPIN_PERCENT and SPIN_LEAST_W <= (sample.power_w or 0) <= SPIN_MOST_W
        for sample in samples
    )


def _drawn(context: Context, node: str) -> str:
    last = gpus(context, node)[-1]
    figures = ((last.utilization_percent, "%"), (last.power_w, "W"), (last.sm_clock_mhz, "MHz"))
    return f"{node}: " + ", ".join(f"{value:.0f} {unit}" for value, unit in figures if value is not None)


@running_check(
    "RUN-004",
    "The answer is not garbage",
    remedy="`moe-backend: marlin` in the playbook; if it is already set, verify the weights and clear the caches",
)
def language(context: Context) -> Iterator[Seen]:
    """Kernels that are wrong for sm_121 return `!!!!!` with status 200; only the text shows it."""
    for group, reply in of(context).replies.items():
        if reply.problem and not reply.text:
            continue
        wrong = garbage(reply.text)
        if wrong is None and (reply.ttft_s is not None or reply.problem):
            continue
        remedy = [LOGS, f"{DOWN}, then {UP}"]
        if wrong:
            lines = [line for _, rank in groups(context).get(group, []) for line in plain(rank.lines)]
            first = context.engine.garbage_remedy(context.spec.playbook, lines)
            verify = ["sparkcluster stage INVENTORY weights --verify", f"{DOWN}, then {UP} --clear-caches"]
            remedy = [first] if first else verify
        summary = f"{group} answers, and its output is garbage" if wrong else f"{group} returns empty answers"
        tokens = f"{reply.tokens} tokens without text" if reply.tokens else "no text"
        yield Seen(reply.head, summary, wrong or tokens, tuple(remedy))


@running_check(
    "RUN-016",
    "The engine behind the API is alive",
    remedy="`sparkcluster down` and `up`; the reason is further up in the log",
)
def engine(context: Context) -> Iterator[Seen]:
    """The API server outlives its engine: it returns 200 for /health and 500 for every completion."""
    explained = {found.rank.group for found in causes(context)}
    lost = {rank.group for _, rank in ended_ranks(context)}
    for group, reply in of(context).replies.items():
        if reply.problem != "engine-dead" or group in explained | lost:
            continue
        look = dict(of(context).seen()).get(reply.head)
        health = f"/health: {look.health}" if look and isinstance(look.health, int) else "/health does not answer"
        lines = [line for _, rank in groups(context).get(group, []) for line in plain(rank.lines)]
        pattern = context.engine.dead
        log = next((line.strip() for line in reversed(lines) if pattern and re.search(pattern, line)), "")
        seen = clipped("; ".join(part for part in (reply.message, health, log) if part))
        remedy = (LOGS, f"{DOWN}, then {UP}")
        yield Seen(reply.head, f"the engine of {group} is dead behind its API", seen, remedy)


@running_check(
    "RUN-017",
    "No rank waits for another in compilation",
    remedy="`sparkcluster up --clear-caches`",
)
def stalled(context: Context) -> Iterator[Seen]:
    """With a stale compile or autotune cache, one node skips a step that the others do together: all of them wait.

    A healthy engine prints the line once or twice while it compiles; here it is the last line.
    """
    for group, found in groups(context).items():
        reply = of(context).replies.get(group)
        if reply is not None and not broken(reply):
            continue
        for name, rank in found:
            line = _stalled(context, rank)
            if line:
                remedy = (DOWN, f"{UP} --clear-caches")
                summary = f"the ranks of {group} wait for each other while they compile"
                yield Seen(name, summary, clipped(line), remedy)
                break


def _stalled(context: Context, rank: RankSeen) -> str | None:
    if context.engine.stalled is None:
        return None
    pattern = re.compile(context.engine.stalled)
    lines = [line for line in plain(rank.lines) if line.strip()]
    last = [line for line in lines[-3:] if pattern.search(line)]
    before = " ".join(line for line in lines[-60:] if not pattern.search(line))
    compiling = re.search(r"(?i)autotun|torch[._]compile|inductor|cuda ?graph|compil(?:ing|ation)", before)
    return last[-1].strip() if last and compiling and rank.running and not ready(context, rank) else None


@running_check(
    "RUN-022",
    "Every node could be inspected",
    severity="warning",
    source="sparkcluster: unknown is not healthy",
    remedy="docker logs and ray status on that node",
)
def inspected(context: Context) -> Iterator[Seen]:
    """What could not be inspected may be broken."""
    for name, observation in of(context).observations.items():
        docker = context.facts[name].docker if name in context.facts else None
        if isinstance(observation, Unread):
            yield Seen(name, f"the ranks on {name} could not be inspected", observation.unread, (f"{LOGS} {name}",))
            continue
        if isinstance(observation.ranks, Unread):
            if not isinstance(docker, Unread):  # reported by HOST-001
                yield Seen(name, f"the ranks on {name} could not be listed", observation.ranks.unread, ())
            continue
        if isinstance(observation.ray, Unread) and not ended_ranks(context):
            remedy = (f"on {name}: docker exec {observation.ranks[0].name} ray status" if observation.ranks else LOGS,)
            yield Seen(name, f"Ray on {name} could not be queried", clipped(observation.ray.unread), remedy)
        for rank in observation.ranks:
            if isinstance(rank.log, Unread):
                remedy = (f"on {name}: docker logs {rank.name}",)
                yield Seen(name, f"the log of {rank.name} could not be read", rank.log.unread, remedy)


@running_check(
    "RUN-023",
    "The engine is not overloaded",
    severity="warning",
    remedy="raise max-num-seqs, or send less at once",
)
def busy(context: Context) -> Iterator[Seen]:
    """An engine with more requests than it can run at once queues new ones, which then wait for long."""
    for group, reply in of(context).replies.items():
        if _busy(context, reply):
            last = counters(context, reply.head)[-1]
            seen = f"{last.running or 0:.0f} running, {last.waiting or 0:.0f} waiting"
            seen += f"; no token within {reply.limit_s:.0f} s"
            remedy = (
                "raise max-num-seqs in the playbook, or send less at once",
                "sparkcluster doctor INVENTORY --timeout 120",
            )
            yield Seen(reply.head, f"{group} is busy and queues new requests", seen, remedy)


def _busy(context: Context, reply: Reply) -> bool:
    read = counters(context, reply.head)
    if reply.problem != "timeout" or not silent(reply) or len(read) < 2:
        return False
    return (read[-1].generated or 0) > (read[0].generated or 0)
