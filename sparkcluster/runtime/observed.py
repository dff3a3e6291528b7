"""Observations that commands make of a cluster over time, kept on the operator's machine for ``--bundle``.

A file with one JSON document per line. Errors here never fail a command.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any

from sparkcluster.errors import UsageError
from sparkcluster.output_file import state_home, write

LINES = 500
# Format of the time of an entry; sorts as text.
TIME = "%Y-%m-%dT%H:%M:%SZ"
_writing = threading.Lock()


def path(cluster: str) -> Path:
    """The file of ``cluster``, below the user's state directory."""
    return state_home() / "observed" / f"{cluster}.jsonl"


def note(cluster: str, what: str, **values: Any) -> None:
    """Append ``values`` (JSON) and keep the newest ``LINES`` lines.

    A damaged file is replaced. If two commands write at the same moment, one line may be lost.
    """
    file = path(cluster)
    entry = {"time": time.strftime(TIME, time.gmtime()), "what": what, **values}
    with _writing, contextlib.suppress(OSError, UsageError):
        entries = [*read(cluster), entry][-LINES:]
        text = "".join(f"{json.dumps(each, default=str)}\n" for each in entries)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(file, lambda opened: opened.write(text.encode()), private=True)


def read(cluster: str) -> list[dict[str, Any]]:
    """The lines of ``cluster``, oldest first; empty if the file is damaged."""
    try:
        return [json.loads(line) for line in path(cluster).read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return []
