"""Logs of a failed launch, kept on the machine where ``up`` was typed: its ranks are removed, and so are their logs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparkcluster.output_file import state_home
from sparkcluster.printable import clean

_COMMAND = re.compile(r"sparkcluster logs INVENTORY(?: [\w.-]+)?")


def directory(cluster: str) -> Path:
    """Directory of the logs of the last failed launch of ``cluster``, below the user's state directory."""
    return state_home() / "failed" / cluster


def keep(place: Path, logs: Mapping[str, Sequence[str]]) -> bool:
    """Write one file for each node into ``place``, readable by the user alone; False where that fails."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in place.glob("*.log"):
            old.unlink()
        for node, lines in logs.items():
            path = place / f"{re.sub('[^A-Za-z0-9_.-]', '-', node)}.log"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(f"{clean(line)}\n" for line in lines)
    except OSError:
        return False
    return True


def pointed(hint: str | None, place: Path) -> str:
    """``hint`` with the directory of the logs in place of the command that would no longer find any."""
    where = f"{place}/"
    if hint is None:
        return f"last log lines: {where}"
    if _COMMAND.search(hint):
        return _COMMAND.sub(lambda _: where, hint)
    return f"{hint}; last log lines: {where}"
