"""Why a group failed: which of its ranks did so first, and the cause, from the logs and states of all. Pure."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from sparkcluster.engines.base import Engine
from sparkcluster.engines.common_signatures import NEWER_IMAGE, TCP
from sparkcluster.engines.signature import Cause, plain
from sparkcluster.printable import shell

ABORTED = 134
KILLED = {137: "it was killed (SIGKILL)", 139: "it crashed (SIGSEGV)", ABORTED: "it aborted (SIGABRT)"}
"""Exit codes of ranks that did not exit by themselves, and what they mean."""

LINK = "RUN-025"
"""Code of a cause that is a link without a carrier."""

_DEATHS = frozenset({"RUN-005", "RUN-016"})
"""Codes of signatures that say that the engine or one of its processes died."""

# SIGABRT is how NCCL's watchdog and C++ end a process whose connection broke, so it may be a consequence.
_BY_KERNEL = frozenset({137, 139})
# Of ranks that need not have ended by an exception: stopped, killed, or not seen to end (moby#45800).
_NOT_BY_EXCEPTION = frozenset({-1, 0, 143, 255, *_BY_KERNEL})
_EXCEPTIONS = (
    re.compile(r"(?:^|[\s\])|])(?P<what>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception))(?:: (?P<why>\S.{0,200})|$)"),
    # pydantic names the field, if any, and the reason in lines below its ValidationError.
    re.compile(r"(?:Value error|Assertion failed), (?P<why>\S.{0,200}?)(?: \[type=|$)"),
    re.compile(r"(?:^|[)\]]) {2,8}(?P<why>\S.{0,200}?) \[type=(?!value_error|assertion_error)\w{1,60}, input_value="),
)
# Exceptions that only say that another one was raised, or that a connection to what died is closed.
_FOLLOWS = (
    r"\d+ validation errors? for |WorkerProc initialization failed|Worker failed with error '|Call to \w+ method failed"
    r"|Engine (?:process failed|loop (?:has died|is not running))|[Cc]ancelled|Executor failed"
    r"|(?:ConnectionReset|ConnectionRefused|ConnectionAborted|BrokenPipe|EOF|ChildProcess|RayTask|DistBackend)Error"
    r"|ProcessExitedException|Broken pipe|KeyError: '/(?:psm|mp)[-_]|failed to recv, got 0 bytes|terminated with signal"
)
# Exceptions of lines that are no error, of single requests, and one that imports print (tensorflow/tensorflow#109469).
_HARMLESS = re.compile(r"\b(?:DEBUG|INFO|WARNING)[ :]|\[serving\w*\.py:|'MessageFactory' object has no attribute")
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
    found = logged(engine, lines, exit_code, oom_killed)
    return found or (None if exit_code is None else _by_exit_code(exit_code, engine) or TCP.match(plain(lines)))


def logged(engine: Engine, lines: Sequence[str], exit_code: int | None, oom_killed: bool = False) -> Cause | None:
    """As ``cause``, by the kernel and the log alone.

    A root cause that a signature knows; else the last exception that follows from no other; else what may follow from
    another rank; else a consequence. A rank that runs logs exceptions that end nothing, and so does one that somebody
    stopped or killed: there they count only before a line of the engine's death.
    """
    if oom_killed:
        return Cause("the kernel killed it because memory ran out", engine.memory_hint, code="RUN-014")
    shown = plain(lines)
    known = [found for signature in engine.signatures if (found := signature.match(shown))]
    for each in known:
        if each.order == 0 and not _HARMLESS.search(each.line):
            return each
    died = max((at for at, line in enumerate(shown) if _says_death(engine, line)), default=-1)
    ended = _code(exit_code) not in _NOT_BY_EXCEPTION
    # What is raised while an engine shuts down follows from its death.
    raised = [*_exceptions(engine, shown[: died + 1]), *(_exceptions(engine, shown[died + 1 :]) if ended else ())]
    root = next((each for each in raised if not each.consequence), None)
    if root is None and (ended or died >= 0):
        root = NEWER_IMAGE.match(shown)
    return root or next(iter((*known, *raised)), None)


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
    rank so; a root cause in a log; a link without a carrier; SIGABRT; exceptions without a signature; what a log says
    of another rank or of the network; consequences; and the first rank that ended. Where a line names another rank,
    that one is meant.

    Args:
        engine: whose signatures are searched for.
        ranks: of one group, by rank.

    Returns:
        Without a rank that ended, a known cause in a log and a link that is down: rank 0, without a cause.
    """
    logs = ((rank.node, logged(engine, rank.lines, rank.exit_code, rank.oom_killed)) for rank in ranks)
    found = {node: why for node, why in logs if why is not None}
    in_order = sorted(ranks, key=lambda rank: math.inf if rank.ended_at is None else rank.ended_at)
    for rank, why in _candidates(engine, in_order, found):
        blamed = _blamed(engine, rank, why, [rank.address for rank in ranks])
        return Failure(rank.node if blamed is None else ranks[blamed].node, rank.node, why)
    first = in_order[0]
    return Failure(first.node, first.node, cause(engine, first.lines, first.exit_code))


def _candidates(
    engine: Engine, ranks: Sequence[RankEnd], found: Mapping[str, Cause]
) -> Iterator[tuple[RankEnd, Cause]]:
    """Ranks with their causes, the first cause first; ``found`` are those of their logs, by node."""
    own = {node for node, why in found.items() if why.order == 0}
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
    for order in (1, 2, 3):
        yield from ((rank, why) for rank in ranks if (why := found.get(rank.node)) and why.order == order)


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


def _says_death(engine: Engine, line: str) -> bool:
    return any(re.search(each.pattern, line) for each in engine.signatures if each.code in _DEATHS)


def _exceptions(engine: Engine, lines: Sequence[str]) -> Iterator[Cause]:
    """Exceptions in a log, the last one first; those that follow from another one are marked."""
    later = [signature.pattern for signature in engine.signatures if signature.by_peer or signature.consequence]
    for line in reversed(lines):
        found = next((match for each in _EXCEPTIONS if (match := each.search(line))), None)
        if found is None or _HARMLESS.search(line):
            continue
        what = (found.groupdict().get("what") or "").rpartition(".")[2]
        summary = ": ".join(filter(None, (what, found["why"])))
        follows = any(re.search(pattern, line) for pattern in (_FOLLOWS, *later))
        yield Cause(summary.strip().rstrip("."), line=line.strip(), unlisted=True, consequence=follows)


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
