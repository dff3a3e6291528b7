"""Why a group failed: the rank that failed first, and the cause, from the logs and states of all ranks. Pure."""

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
"""Exit codes of ranks that a signal ended, and what they mean."""

LINK = "RUN-025"
"""Code of a cause that is a link without a carrier."""

_DEATHS = frozenset({"RUN-005", "RUN-016"})
"""Codes of signatures that say that the engine or one of its processes died."""

# NCCL's watchdog and C++ end a process with SIGABRT when its connection broke, so SIGABRT may be a consequence.
_BY_KERNEL = frozenset({137, 139})
# Exit codes without an exception: stopped, killed, or unknown (moby#45800).
_NOT_BY_EXCEPTION = frozenset({-1, 0, 143, 255, *_BY_KERNEL})
_EXCEPTIONS = (
    re.compile(r"(?:^|[\s\])|])(?P<what>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception))(?:: (?P<why>\S.{0,200})|$)"),
    # pydantic names the field, if any, and the reason in lines below its ValidationError.
    re.compile(r"(?:Value error|Assertion failed), (?P<why>\S.{0,200}?)(?: \[type=|$)"),
    re.compile(r"(?:^|[)\]]) {2,8}(?P<why>\S.{0,200}?) \[type=(?!value_error|assertion_error)\w{1,60}, input_value="),
)
# Exceptions that follow from another one, or from a closed connection to a process that died.
_FOLLOWS = (
    r"\d+ validation errors? for |WorkerProc initialization failed|Worker failed with error '|Call to \w+ method failed"
    r"|Engine (?:process failed|loop (?:has died|is not running))|[Cc]ancelled|Executor failed"
    r"|(?:ConnectionReset|ConnectionRefused|ConnectionAborted|BrokenPipe|EOF|ChildProcess|RayTask|DistBackend)Error"
    r"|ProcessExitedException|Broken pipe|KeyError: '/(?:psm|mp)[-_]|failed to recv, got 0 bytes|terminated with signal"
)
# Exceptions in lines below ERROR, of single requests, and one that imports print (tensorflow/tensorflow#109469).
_HARMLESS = re.compile(r"\b(?:DEBUG|INFO|WARNING)[ :]|\[serving\w*\.py:|'MessageFactory' object has no attribute")
# Ray's head repeats the lines of its workers, each with the address of its node.
_ELSEWHERE = re.compile(r"\bip=(\d+(?:\.\d+){3})")


@dataclasses.dataclass(frozen=True, slots=True)
class RankEnd:
    """The state of one rank of a group that failed.

    Attributes:
        address: address of its node in the group.
        lines: its last log lines, oldest first.
        ended_at: when it ended, in seconds of any clock; None while it runs.
        oom_killed: whether the kernel killed its container because memory ran out.
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
        node: the rank's node, or the node with the link.
        reporter: the node whose log has the cause's line; ``node`` if no log has it.
        cause: None if neither log nor exit code explains the end.
    """

    node: str
    reporter: str
    cause: Cause | None


def cause(engine: Engine, lines: Sequence[str], exit_code: int | None, oom_killed: bool = False) -> Cause | None:
    """Why a rank ended, or None if no signature, exception or exit code explains it.

    ``lines`` are its last log lines, oldest first; ``exit_code`` is None while it runs; ``oom_killed`` means that the
    kernel killed its container because memory ran out.
    """
    found = logged(engine, lines, exit_code, oom_killed)
    return found or (None if exit_code is None else _by_exit_code(exit_code, engine) or TCP.match(plain(lines)))


def logged(engine: Engine, lines: Sequence[str], exit_code: int | None, oom_killed: bool = False) -> Cause | None:
    """Like ``cause``, from the kernel and the log only.

    In this order: a root cause that a signature knows; the last exception that does not follow from another; a cause
    that another rank may explain; a consequence. Ranks that run, or were stopped or killed, also log harmless
    exceptions: there, exceptions count only before the line of the engine's death.
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
    # Exceptions after the engine's death follow from it.
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
    """The rank of a group that failed first, and why: root causes before consequences, on any node.

    In this order: a rank killed because memory ran out; SIGKILL and SIGSEGV, which only the kernel or a person sends;
    a root cause in a log; a link without a carrier; SIGABRT; exceptions without a signature; log lines about another
    rank or the network; consequences; and the first rank that ended. If a line names another rank, that rank failed.

    Args:
        engine: the engine whose signatures are searched for.
        ranks: ranks of one group, in their order.

    Returns:
        Rank 0 without a cause if no rank ended, no log has a known cause and no link is down.
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
    """Ranks with their causes, the most likely first; ``found`` are the causes in their logs, by node."""
    own = {node for node, why in found.items() if why.order == 0}
    yield from ((rank, found[rank.node]) for rank in ranks if rank.oom_killed)
    for rank in ranks:
        why = _by_exit_code(rank.exit_code, engine)
        if why is not None and was_killed(engine, rank.lines, rank.exit_code) and rank.node not in own:
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
    """The rank that the log of ``reporter`` blames for ``why``; None if it is ``reporter`` itself."""
    if not why.line:
        return None
    address = why.peer or address_of(why.line)
    if address in members:
        return members.index(address)
    return None if why.by_peer else failed_rank(engine, reporter.lines, members)


def was_killed(engine: Engine, lines: Sequence[str], exit_code: int | None) -> bool:
    """Whether the kernel or a person ended the rank.

    An engine that logged its own death may have sent SIGKILL to itself, as SGLang does.
    """
    return _code(exit_code) in _BY_KERNEL and not (
        engine.dead and any(re.search(engine.dead, line) for line in plain(lines))
    )


def failed_rank(engine: Engine, lines: Sequence[str], members: Sequence[str]) -> int | None:
    """The rank that failed first according to the log of a rank of its group, or None without such a line.

    ``lines`` are log lines, oldest first; ``members`` the addresses of the group's nodes, by rank.
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
    """The address of the node that printed ``line``, if Ray's head repeats a worker's line."""
    found = _ELSEWHERE.search(line)
    return found[1] if found else None


def _says_death(engine: Engine, line: str) -> bool:
    return any(re.search(each.pattern, line) for each in engine.signatures if each.code in _DEATHS)


def _exceptions(engine: Engine, lines: Sequence[str]) -> Iterator[Cause]:
    """Exceptions in a log, the last first; exceptions that follow from another are marked as consequences."""
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
            f"sudo dmesg on that node shows whether it did; if so, {engine.memory_hint}",
        ),
        139: Cause(KILLED[139], "sudo dmesg on that node shows where"),
        143: Cause("it received SIGTERM"),
    }
    return causes.get(_code(code))


def _code(code: int | None) -> int:
    """``code`` as in a shell: 128 plus the signal's number if a signal ended the process."""
    return -1 if code is None else code if code >= 0 else 128 - code
