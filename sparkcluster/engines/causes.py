"""Why a group failed: which of its ranks did so first, and the cause, from the logs and states of all. Pure."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from sparkcluster.engines.base import Engine
from sparkcluster.engines.common_signatures import TCP
from sparkcluster.engines.signature import Cause, plain
from sparkcluster.printable import shell

ABORTED = 134
KILLED = {137: "it was killed (SIGKILL)", 139: "it crashed (SIGSEGV)", ABORTED: "it aborted (SIGABRT)"}
"""Exit codes of ranks that did not exit by themselves, and what they mean."""

LINK = "RUN-025"
"""Code of a cause that is a link without a carrier."""

# SIGABRT is how NCCL's watchdog and C++ end a process whose connection broke, so it may be a consequence.
_BY_KERNEL = frozenset({137, 139})
_EXCEPTION = re.compile(r"(?:^|[\s\])|])(?P<what>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (?P<why>\S.{0,200})")
# Ray's head repeats the lines of its workers, each with the address of its node.
_ELSEWHERE = re.compile(r"\bip=(\d+(?:\.\d+){3})")


@dataclasses.dataclass(frozen=True, slots=True)
class RankEnd:
    """What is known of one rank of a group that failed.

    Attributes:
        address: of its node in the group.
        lines: its last log lines, oldest first.
        ended_at: when it ended, in seconds by any clock; None where it runs.
        oom_killed: whether the kernel killed its container for memory.
        down: interfaces of its node that the group uses and that have no carrier.
    """

    node: str
    address: str
    lines: Sequence[str]
    ended_at: float | None = None
    exit_code: int | None = None
    oom_killed: bool = False
    down: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """The rank that failed first, and why.

    Attributes:
        node: of that rank, or the one with the link.
        reporter: the node whose log has the cause's line; ``node`` where none has.
        cause: None where neither log nor exit code explains the end.
    """

    node: str
    reporter: str
    cause: Cause | None


def cause(engine: Engine, lines: Sequence[str], exit_code: int | None, oom_killed: bool = False) -> Cause | None:
    """Why a rank ended, or None if no signature, exception or exit code explains it.

    ``lines`` are its last log lines, oldest first; ``exit_code`` is None where it still runs; ``oom_killed`` says that
    the kernel killed its container for memory.
    """
    shown = plain(lines)
    if oom_killed:
        return Cause("the kernel killed it because memory ran out", engine.memory_hint, code="RUN-014")
    for signature in engine.signatures:
        found = signature.match(shown)
        if found:
            return found
    if exit_code is None:
        return None
    return _by_exception(shown) or _by_exit_code(exit_code, engine) or TCP.match(shown)


def no_carrier(interface: str, node: str) -> Cause:
    """The cause of a group whose link ``interface`` on ``node`` is down."""
    return Cause(
        f"no carrier on {interface}: the cable is out or the other end is down",
        f"check the cable and the other Spark; on {node}: {shell('ip link show', interface)}",
        code=LINK,
    )


def first_failure(engine: Engine, ranks: Sequence[RankEnd]) -> Failure:
    """The rank of a group that failed first, and why: causes before their consequences, on whichever node they are.

    In this order: what the kernel killed for memory; SIGKILL and SIGSEGV, since only the kernel or a person ends a
    rank so; a root cause in a log; a link without a carrier; SIGABRT; what a log says of another rank or of the
    network; consequences; and the first rank that ended. Where a line names another rank, that one is meant.

    Args:
        engine: whose signatures are searched for.
        ranks: of one group, by rank.

    Returns:
        Without a rank that ended, a known cause in a log and a link that is down: rank 0, without a cause.
    """
    found = {rank.node: why for rank in ranks if (why := cause(engine, rank.lines, None, rank.oom_killed)) is not None}
    in_order = sorted(ranks, key=lambda rank: math.inf if rank.ended_at is None else rank.ended_at)
    for rank, why in _candidates(engine, in_order, found):
        blamed = _blamed(engine, rank, why, [rank.address for rank in ranks])
        return Failure(rank.node if blamed is None else ranks[blamed].node, rank.node, why)
    first = in_order[0]
    return Failure(first.node, first.node, cause(engine, first.lines, first.exit_code))


def _candidates(
    engine: Engine, ranks: Sequence[RankEnd], found: Mapping[str, Cause]
) -> Iterator[tuple[RankEnd, Cause]]:
    """Ranks with their causes, the first cause first; ``found`` are those by known lines, by node."""
    own = {node for node, why in found.items() if why.is_root}
    yield from ((rank, found[rank.node]) for rank in ranks if rank.oom_killed)
    for rank in ranks:
        why = _by_exit_code(rank.exit_code, engine)
        if why is not None and _code(rank.exit_code) in _BY_KERNEL and rank.node not in own:
            yield rank, why
    yield from ((rank, found[rank.node]) for rank in ranks if rank.node in own)
    yield from ((rank, no_carrier(rank.down[0], rank.node)) for rank in ranks if rank.down)
    for rank in ranks:
        why = _by_exit_code(rank.exit_code, engine)
        if why is not None and _code(rank.exit_code) in KILLED and rank.node not in found:
            yield rank, why
    for consequence in (False, True):
        yield from ((rank, why) for rank in ranks if (why := found.get(rank.node)) and why.consequence is consequence)


def _blamed(engine: Engine, reporter: RankEnd, why: Cause, members: Sequence[str]) -> int | None:
    """The rank that the log of ``reporter`` blames for ``why``; None where that is its own."""
    if not why.line:
        return None
    address = why.peer or address_of(why.line)
    if address in members:
        return members.index(address)
    return None if why.by_peer else failed_rank(engine, reporter.lines, members)


def failed_rank(engine: Engine, lines: Sequence[str], members: Sequence[str]) -> int | None:
    """The rank that failed first according to the log of one of its group, or None without such a line.

    ``lines`` are the log's, oldest first; ``members`` the addresses of the group's nodes, by rank.
    """
    for pattern in engine.culprits:
        for line in lines:
            found = pattern.search(line)
            if found is None:
                continue
            place = found.groupdict()
            number = place.get("rank") or place.get("other")
            if number is not None and int(number) < len(members):
                return int(number)
            if place.get("address") in members:
                return members.index(str(place["address"]))
    return None


def address_of(line: str) -> str | None:
    """The address of the node that ``line`` of a log is about, where Ray's head repeats a line of its workers."""
    found = _ELSEWHERE.search(line)
    return found[1] if found else None


def _by_exception(lines: Sequence[str]) -> Cause | None:
    """The last Python exception in the log."""
    for line in reversed(lines):
        found = _EXCEPTION.search(line)
        if found:
            return Cause(f"{found['what'].rpartition('.')[2]}: {found['why'].strip().rstrip('.')}", line=line.strip())
    return None


def _by_exit_code(code: int | None, engine: Engine) -> Cause | None:
    """The meaning of the exit code."""
    causes = {
        0: Cause("it exited with code 0"),
        126: Cause("its program is not executable", "is the image built for this machine's processor?"),
        127: Cause("its program is not in the image", "command in the playbook may be wrong"),
        ABORTED: Cause(KILLED[ABORTED]),
        137: Cause(
            f"{KILLED[137]}, most often because memory ran out",
            f"the kernel's log of that node says whether it did (dmesg); if so, {engine.memory_hint}",
        ),
        139: Cause(KILLED[139], "sudo dmesg on that node shows where"),
        143: Cause("it received SIGTERM"),
    }
    return causes.get(_code(code))


def _code(code: int | None) -> int:
    """``code`` as a shell tells it where a signal ended the process: 128 and its number."""
    return -1 if code is None else code if code >= 0 else 128 - code
