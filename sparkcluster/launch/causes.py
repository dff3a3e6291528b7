"""Why a rank ended, and which one failed first, from log lines and exit codes. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sparkcluster.engines.base import Engine
from sparkcluster.engines.common_signatures import TCP
from sparkcluster.engines.signature import Cause, plain

_EXCEPTION = re.compile(r"(?:^|[\s\])|])(?P<what>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (?P<why>\S.{0,200})")


def cause(engine: Engine, lines: Sequence[str], exit_code: int | None, oom_killed: bool = False) -> Cause | None:
    """Why a rank ended, or None if no signature, exception or exit code explains it.

    ``lines`` are its last log lines, oldest first; ``exit_code`` is None where it still runs; ``oom_killed`` says that
    the kernel killed its container for memory.
    """
    shown = plain(lines)
    if oom_killed:
        return Cause("the kernel killed it because memory ran out", engine.memory_hint)
    for signature in engine.signatures:
        found = signature.match(shown)
        if found:
            return found
    if exit_code is None:
        return None
    return _by_exception(shown) or _by_exit_code(exit_code, engine) or TCP.match(shown)


def _by_exception(lines: Sequence[str]) -> Cause | None:
    """The last Python exception in the log."""
    for line in reversed(lines):
        found = _EXCEPTION.search(line)
        if found:
            return Cause(f"{found['what'].rpartition('.')[2]}: {found['why'].strip().rstrip('.')}")
    return None


def _by_exit_code(code: int, engine: Engine) -> Cause | None:
    """The meaning of the exit code."""
    causes = {
        0: Cause("it exited with code 0"),
        126: Cause("its program is not executable", "is the image built for this machine's processor?"),
        127: Cause("its program is not in the image", "command in the playbook may be wrong"),
        134: Cause("it aborted (SIGABRT)"),
        137: Cause("it was killed (SIGKILL), most often because memory ran out", f"sudo dmesg; {engine.memory_hint}"),
        139: Cause("it crashed (SIGSEGV)", "sudo dmesg on that node shows where"),
        143: Cause("it received SIGTERM"),
    }
    return causes.get(code if code >= 0 else 128 - code)


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
