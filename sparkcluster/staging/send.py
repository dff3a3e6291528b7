"""Sends a file of this machine to a node, under the lease: resumed where it stopped, and there whole or not at all."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sparkcluster.answers import checked
from sparkcluster.errors import HostError, HostLost, StageError
from sparkcluster.facts.base import Fact, Number
from sparkcluster.hosts.base import Host, Stream
from sparkcluster.hosts.program import document, stream
from sparkcluster.runtime.change import refusal
from sparkcluster.staging.copy import Done, Failure, Step, stage_error, stage_errors, unexpected, unfinished
from sparkcluster.staging.order import files_path

# Hashing what is there, or what arrived, takes a node less than this.
_SILENT_S = 300
_CHUNK = 1 << 18


class Taken(Fact):
    """One line of the program that takes a file: what it has of it already, or how it ended."""

    offset: Number | None = None
    done: Done | None = None
    failed: str | None = None
    kind: str = "other"
    refused: str | None = None

    @property
    def ended(self) -> bool:
        """Whether this is its last line."""
        return self.offset is None


def send(
    step: Step,
    host: Host,
    source: Path | bytes,
    request: dict[str, Any],
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> Done:
    """Send the file or content ``source`` to where ``request`` says (``root``, ``path``, ``sha256``, …: ``node.take``).

    ``report`` gets the bytes that are there, and all. It goes on where an earlier run stopped.

    Returns:
        Bytes that were sent, and how a file of the user's in its place is called now.

    Raises:
        StageError: it did not arrive.
        LeaseLost: another operator has the lease; nothing of the file is under its name.
        OSError: ``source`` cannot be read.
    """
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    sent = 0
    whole = {**request, "size": size, **step.lease(host.name)}
    opened = io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
    with opened as file, stage_errors(step, host.name), stream(host, "upload", whole) as running:
        said = _said(step, host.name, running)
        last = next(said, None)
        if last is not None and not last.ended:
            at = file.seek(min(last.offset or 0, size))
            try:
                while chunk := file.read(_CHUNK):
                    if step.stopped():
                        raise StageError(f"{step.name} was stopped", node=host.name, step=step.name)
                    running.send(chunk)
                    at, sent = at + len(chunk), sent + len(chunk)
                    report(at, size)
            except HostLost as error:
                last = _last_word(said)
                if last is None:
                    raise error from None
            else:
                last = next(said, None)
        done = _outcome(step, host.name, last) or unfinished(host.name, running)
    if isinstance(done, Failure):
        raise stage_error(step, done, source="this machine")
    return done.model_copy(update={"bytes": sent})


def bring(step: Step, host: Host, key: str, content: bytes) -> None:
    """Send the list of files of the job ``key`` to where the worker of ``host`` reads it.

    Raises:
        StageError, LeaseLost: as ``send``.
    """
    lease = step.lease(host.name)
    root, _, name = files_path(lease["state_dir"], lease["cluster"], key).rpartition("/")
    digest = hashlib.sha256(content).hexdigest()
    send(step, host, content, {"root": root, "path": name, "sha256": digest, "private": True})


def _said(step: Step, node: str, running: Stream) -> Iterator[Taken]:
    for line in running.lines(_SILENT_S, within_s=math.inf):
        found = document(line)
        if found is None:
            yield Taken(failed=unexpected(line))
            return
        yield checked(Taken, found, node=node, step=step.name)


def _last_word(said: Iterator[Taken]) -> Taken | None:
    """What the program said before it ended, if anything can still be read of it."""
    try:
        return next(said, None)
    except HostError:
        return None


def _outcome(step: Step, node: str, last: Taken | None) -> Done | Failure | None:
    """How it ended, as its last line says; None without one."""
    if last is None:
        return None
    if last.refused is not None:
        raise refusal(node, last.refused, step.name)
    if last.kind == "lost" and last.failed is not None:
        raise HostLost(f"{node}: {last.failed}", node=node, step=step.name)
    if last.failed is not None:
        return Failure(node, last.kind, last.failed)
    return last.done
