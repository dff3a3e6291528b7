"""Logs of a failed launch, kept on the machine where ``up`` was typed: its ranks are removed, and so are their logs."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkcluster.errors import LaunchError, Reason
from sparkcluster.output_file import state_home
from sparkcluster.printable import clean
from sparkcluster.report import duration

_COMMAND = re.compile(r"sparkcluster logs INVENTORY(?: [\w.-]+)?")
_ABOUT = "failure.json"


@dataclasses.dataclass(frozen=True, slots=True)
class FailedLaunch:
    """The last launch of a cluster that failed.

    Attributes:
        at_s: when, in seconds since 1970.
        message, hint, node: of the error; ``node`` is the one that failed, None where it is not known. A hint to read
            the log, which is here, is left out.
        reason: the line that says why; None where none does.
        logs: files with the last log lines of every rank of the groups that failed, by node.
    """

    at_s: float
    message: str
    hint: str | None
    node: str | None
    reason: Reason | None
    logs: Mapping[str, Path]

    def ago(self, now_s: float) -> str:
        """How long before ``now_s`` it failed, in words."""
        return f"{duration(max(0.0, now_s - self.at_s))} ago"

    def described(self, now_s: float) -> str:
        """How long before ``now_s`` it failed and why, and the line that says so with its place."""
        line = f"; {self.reason.place}: {self.reason.line}" if self.reason else ""
        return f"the last launch that failed, {self.ago(now_s)}: {self.message}{line}"


def directory(cluster: str) -> Path:
    """Directory of the logs of the last failed launch of ``cluster``, below the user's state directory."""
    return state_home() / "failed" / cluster


def keep(place: Path, failed: Sequence[LaunchError], now_s: float | None = None) -> bool:
    """Write one log for each node of the launches in ``failed`` into ``place``, and what they say themselves.

    The reason of each gets the file that has its line. All are readable by the user alone; False where that fails.
    """
    now_s = time.time() if now_s is None else now_s
    logs = {node: lines for error in failed for node, lines in error.logs.items()}
    names = {node: f"{re.sub('[^A-Za-z0-9_.-]', '-', node)}.log" for node in logs}
    first = failed[0]
    about = {
        "at_s": now_s,
        "message": first.message,
        "hint": None if first.hint is None or _COMMAND.search(first.hint) else first.hint,
        "node": first.node,
        "reason": {"node": first.reason.node, "line": first.reason.line, "number": first.reason.number}
        if first.reason
        else None,
        "logs": names,
    }
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in (*place.glob("*.log"), place / _ABOUT):
            old.unlink(missing_ok=True)
        for node, lines in logs.items():
            _write(place / names[node], "".join(f"{clean(line)}\n" for line in lines))
        _write(place / _ABOUT, json.dumps(about))
    except OSError:
        return False
    for error in failed:
        if error.reason is not None:
            error.reason = error.reason._replace(file=str(place / names[error.reason.node]))
    return True


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def read(place: Path) -> FailedLaunch | None:
    """What ``keep`` has written into ``place``; None if there is nothing, or it is damaged."""
    try:
        about: dict[str, Any] = json.loads((place / _ABOUT).read_text(encoding="utf-8"))
        logs = {str(node): place / Path(name).name for node, name in about["logs"].items()}
        said = about["reason"]
        reason = said and Reason(said["node"], said["line"], int(said["number"]), str(logs[said["node"]]))
        return FailedLaunch(float(about["at_s"]), str(about["message"]), about["hint"], about["node"], reason, logs)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def lines_of(path: Path) -> list[str]:
    """The lines of one log that was kept; none where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def pointed(hint: str | None) -> str | None:
    """``hint`` with the command that shows what was kept in place of the one that would no longer find any log."""
    return hint and _COMMAND.sub(lambda found: f"{found[0].removesuffix(' NODE')} --failed", hint)
