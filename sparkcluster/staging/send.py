"""Sends a local file to a node, under the lease; resumes, and makes the file visible only when it is complete."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import IO

from sparkcluster.errors import HostLost, StageError
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.program import stream
from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.copy import Answer, Done, Failure, OnBytes, Step, answers, stage_error, stage_errors

# Longest time for a node to hash a file before or after the transfer.
_SILENT_S = 300
_CHUNK = 1 << 18


def send(
    step: Step, host: Host, source: Path | IO[bytes], request: Request, report: OnBytes = lambda _done, _total: None
) -> Done:
    """Send the file ``source``, a path or an open file, to the place in ``request`` (``root``, ``path``, …).

    ``report`` gets the bytes that have arrived, and the total. The transfer resumes where an earlier run stopped.

    Returns:
        The bytes that were sent, and the new path of a user's file that was replaced.

    Raises:
        StageError: it did not arrive.
        LeaseLost: another operator has the lease; the file is not visible under its name.
        OSError: ``source`` cannot be read.
    """
    opened = source.open("rb") if isinstance(source, Path) else source
    size = opened.seek(0, io.SEEK_END)
    whole = {**request, "size": size, **step.lease(host.name)}
    with opened as file, stage_errors(step, host.name), stream(host, "upload", whole) as running:
        said = answers(step, host.name, running, Answer, _SILENT_S)
        last = next(said, None)
        if isinstance(last, Answer) and last.offset is not None:
            at = file.seek(min(last.offset, size))
            report(at, size)
            with contextlib.suppress(HostLost):  # if the program exited, its last line says why
                while chunk := file.read(_CHUNK):
                    if step.stopped():
                        raise StageError(f"{step.name} was stopped", node=host.name, step=step.name)
                    running.send(chunk)
                    at += len(chunk)
                    report(at, size)
            last = next(said, None)
        if not isinstance(last, Answer) or last.done is None:
            failure = last if isinstance(last, Failure) else Failure(host.name, "other", running.finish().reason)
            raise stage_error(step, failure, source="this machine")
    return last.done
