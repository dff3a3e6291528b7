"""Keeps the logs of a failed launch on the machine of the operator: the ranks and their logs are removed."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from sparkcluster.errors import LaunchError, Reason, UsageError
from sparkcluster.facts.base import Fact
from sparkcluster.output_file import state_home, write
from sparkcluster.printable import clean
from sparkcluster.report import duration

_ABOUT = "failure.json"


class FailedLaunch(Fact):
    """The last failed launch of a cluster.

    Attributes:
        at_s: seconds since 1970.
        message, hint, node: of the error; ``node`` is the node that failed, None if unknown.
        reason: the log line with the cause, if one was found.
        logs: files with the last log lines of every rank of the failed groups, by node.
    """

    at_s: float
    message: str
    hint: str | None
    node: str | None
    reason: Reason | None
    logs: dict[str, Path]

    def ago(self, now_s: float) -> str:
        """Time between the failure and ``now_s``, in words."""
        return f"{duration(max(0.0, now_s - self.at_s))} ago"

    def described(self, now_s: float) -> str:
        """The age of the failure, its message, and the log line with the cause."""
        line = f"; {self.reason.place}: {self.reason.line}" if self.reason else ""
        return f"the last launch that failed, {self.ago(now_s)}: {self.message}{line}"


def directory(cluster: str) -> Path:
    """Directory with the logs of the last failed launch of ``cluster``, below the user's state directory."""
    return state_home() / "failed" / cluster


def keep(place: Path, failed: Sequence[LaunchError]) -> None:
    """Write the logs of the launches in ``failed`` into ``place``, one file for each node, and the error itself.

    All files are readable by the user only. The reason of each error gets the path of the log that has its line.
    Failures to write are ignored.
    """
    lines = {node: found for error in failed for node, found in error.logs.items()}
    logs = {node: place / f"{re.sub('[^A-Za-z0-9_.-]', '-', node)}.log" for node in lines}
    with contextlib.suppress(OSError, UsageError):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in place.glob("*.log"):
            old.unlink()
        for node, found in lines.items():
            _write(logs[node], "".join(f"{clean(line)}\n" for line in found))
        for error in failed:
            if error.reason is not None:
                error.reason = error.reason._replace(file=str(logs[error.reason.node]))
        first = failed[0]
        about = {"message": first.message, "hint": first.hint, "node": first.node, "reason": first.reason}
        _write(place / _ABOUT, FailedLaunch(at_s=time.time(), logs=logs, **about).model_dump_json())


def _write(path: Path, text: str) -> None:
    write(path, lambda file: file.write(text.encode(errors="backslashreplace")), private=True)


def read(place: Path) -> FailedLaunch | None:
    """What ``keep`` wrote into ``place``; None if it is missing or damaged."""
    try:
        return FailedLaunch.model_validate_json((place / _ABOUT).read_bytes())
    except (OSError, ValidationError):
        return None


def lines_of(path: Path) -> list[str]:
    """The lines of a log that was kept; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
