"""What the checks of a running cluster share: dead ranks, groups that fail, and the causes. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator

from sparkcluster.checks.registry import Context
from sparkcluster.engines.signature import Cause, plain
from sparkcluster.facts.model import Unread
from sparkcluster.facts.running import Counters, GpuSample, Observation, RankSeen, Reply, Running
from sparkcluster.node.shared import LABEL_GROUP, LABEL_NODE, LABEL_RELEASE

UP = "sparkcluster up INVENTORY"
DOWN = "sparkcluster down INVENTORY"
LOGS = "sparkcluster logs INVENTORY"
AGAIN = f"{DOWN}, then {UP}"

LINES = 400
"""As many of a log's last lines as a launch keeps, too."""

ENDED = frozenset({"exited", "dead", "gone", "created"})
# SIGKILL, SIGSEGV and SIGABRT, as exit codes: only the kernel or a person ends a rank so.
KILLED = {137: "it was killed (SIGKILL)", 139: "it crashed (SIGSEGV)", 134: "it aborted (SIGABRT)"}
SHOWN = 300

_ELSEWHERE = re.compile(r"\bip=(\d+(?:\.\d+){3})")


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A rank, its node, and the cause from its log or exit."""

    node: str
    rank: RankSeen
    cause: Cause


def of(context: Context) -> Running:
    """What was read of the running cluster; checks of this stage run only with it."""
    return context.running or Running({})


def clipped(line: str) -> str:
    """``line`` as a finding shows it."""
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}…"


def node_at(context: Context, address: str) -> str | None:
    """The node that has IPv4 ``address``, by its facts or by the recorded plan."""
    found = next((name for name, facts in context.facts.items() if facts.interface_of(address)), None)
    recorded = of(context).recorded
    if found or recorded is None:
        return found
    for name, node in recorded.record.get("plan", {}).get("nodes", {}).items():
        if any((container.get("launcher") or {}).get("address") == address for container in node.get("containers", ())):
            return str(name)
    return None


def node_of_line(context: Context, node: str, line: str) -> str:
    """The node that ``line`` in the log of ``node`` is about: Ray's head repeats what its workers said, by address."""
    found = _ELSEWHERE.search(line)
    return (node_at(context, found[1]) if found else None) or node


def gone(context: Context) -> Iterator[tuple[str, RankSeen]]:
    """Ranks of the recorded release that are missing while others of it are present."""
    running = of(context)
    if running.recorded is None:
        return
    number = str(running.recorded.number)
    present = {rank.name for _, rank in running.ranks()}
    if not any(rank.labels.get(LABEL_RELEASE) == number for _, rank in running.ranks()):
        return
    for name, node in running.recorded.record.get("plan", {}).get("nodes", {}).items():
        observation = running.observations.get(name)
        if not isinstance(observation, Observation) or isinstance(observation.ranks, Unread):
            continue
        for container in node.get("containers", ()):
            if container["name"] not in present:
                labels = {LABEL_GROUP: str(node.get("group")), LABEL_NODE: name}
                yield name, RankSeen(name=container["name"], state="gone", labels=labels)


def ended_ranks(context: Context) -> list[tuple[str, RankSeen]]:
    """Every rank that should run and does not, in the order they ended."""
    ended = [(name, rank) for name, rank in of(context).ranks() if rank.state in ENDED]
    return sorted([*ended, *gone(context)], key=lambda ended: ended[1].finished_at or "")


def groups(context: Context) -> dict[str, list[tuple[str, RankSeen]]]:
    """Every rank that is present, by group."""
    return by_group(of(context).ranks())


def by_group(ranks: Iterable[tuple[str, RankSeen]]) -> dict[str, list[tuple[str, RankSeen]]]:
    """``ranks`` with their nodes, by group."""
    found: dict[str, list[tuple[str, RankSeen]]] = {}
    for name, rank in ranks:
        found.setdefault(rank.group, []).append((name, rank))
    return found


def silent(reply: Reply | None) -> bool:
    """Whether a completion was requested and no token of any field came."""
    return reply is not None and reply.ttft_s is None


def broken(reply: Reply | None) -> bool:
    """Whether it did not complete."""
    return reply is not None and reply.problem is not None


def causes(context: Context) -> list[Found]:
    """Root causes in the logs of groups that do not answer or have lost a rank: each once, with its node."""
    lost = {rank.group for _, rank in ended_ranks(context)}
    found: dict[tuple[str, str, str], Found] = {}
    for group, ranks in groups(context).items():
        if group not in lost and not broken(of(context).replies.get(group)):
            continue
        for name, rank in ranks:
            cause = _cause(context, rank)
            if cause is not None and not cause.consequence:
                node = node_of_line(context, name, cause.line)
                found.setdefault((cause.code, node, group), Found(node, rank, cause))
    return list(found.values())


def _cause(context: Context, rank: RankSeen) -> Cause | None:
    if rank.oom_killed:
        return Cause("the kernel killed it because memory ran out", context.engine.memory_hint, "OOMKilled", "RUN-014")
    lines = plain(rank.lines[-LINES:])
    return next((cause for signature in context.engine.signatures if (cause := signature.match(lines))), None)


def last_match(context: Context, pattern: str) -> dict[str, tuple[re.Match[str], str]]:
    """By node, the last line of any rank's log that ``pattern`` is found in."""
    compiled = re.compile(pattern)
    found: dict[str, tuple[re.Match[str], str]] = {}
    for name, rank in of(context).ranks():
        for line in plain(rank.lines):
            match = compiled.search(line)
            if match:
                found[node_of_line(context, name, line)] = (match, line.strip())
    return found


def counters(context: Context, node: str) -> tuple[Counters, ...]:
    """Counters of the engine whose head ``node`` is."""
    observation = of(context).observations.get(node)
    return (
        observation.counters if isinstance(observation, Observation) and isinstance(observation.counters, tuple) else ()
    )


def gpus(context: Context, node: str) -> tuple[GpuSample, ...]:
    """What the GPU of ``node`` did."""
    observation = of(context).observations.get(node)
    return observation.gpus if isinstance(observation, Observation) and isinstance(observation.gpus, tuple) else ()


def hangs(context: Context, reply: Reply) -> str | None:
    """That the engine took a request and makes no token, in figures; None where it does or cannot be read.

    Its own count of running requests stands still as well, so it may be 0: the engine sets it after each step.
    """
    read = counters(context, reply.head)
    if reply.problem != "timeout" or len(read) < 2 or read[-1].generated is None:
        return None
    first, last = read[0], read[-1]
    if last.generated != first.generated:
        return None
    figures = f"{last.generated:.0f} tokens before and after {last.at_s - first.at_s:.0f} s"
    if last.running:
        figures += f", {last.running:.0f} running"
    return f"{figures}; a request of doctor had no {'end' if reply.ttft_s else 'token'} in {reply.limit_s:.0f} s"


def ready(context: Context, rank: RankSeen) -> bool:
    """Whether the log says that the API has started."""
    text = context.engine.ready
    return text is not None and any(text in line for line in rank.lines)


def group_nodes(context: Context, group: str) -> list[str]:
    """Nodes that have a rank of ``group``."""
    return [name for name, rank in of(context).ranks() if rank.group == group]


def cluster_sick(context: Context) -> bool:
    """Whether a rank is missing or a group gave no whole answer."""
    return bool(ended_ranks(context)) or any(broken(reply) or silent(reply) for reply in of(context).replies.values())


def unplaced(context: Context, group: str) -> str | None:
    """The log line of a group that waits for its placement group, if that is its last."""
    for _, rank in groups(context).get(group, []):
        for line in reversed(plain(rank.lines[-40:])):
            if re.search(r"Waiting for creating a placement group|Cannot provide a placement group", line):
                return None if ready(context, rank) else clipped(line.strip())
    return None
