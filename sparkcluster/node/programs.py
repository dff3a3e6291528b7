"""Runs programs on this node and reads their output."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sparkcluster.node import docker

_TAIL_BYTES = 1 << 16


class Failed(Exception):
    """A program failed; the message has the last lines of its output.

    ``kind`` is ``docker`` unless a subclass sets another.
    """

    kind = "docker"


def run(argv: list[str], limit_s: float = 120, *, sent: bytes = b"", **options: Any) -> str:
    """Standard output of ``argv``, with ``sent`` as its input; ``options`` as in ``started``.

    Raises:
        Failed: it is not installed, takes longer than ``limit_s``, or exits with a code other than 0.
    """
    with started(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        try:
            output, errors = process.communicate(sent, limit_s)
        except subprocess.TimeoutExpired:
            raise Failed("%s timed out after %.0f s" % (" ".join(argv[:2]), limit_s)) from None
    if process.returncode:
        raise Failed(last_lines(errors or output, 3) or "%s: exit code %d" % (argv[0], process.returncode))
    return output.decode(errors="replace")


def succeeds(argv: list[str], limit_s: float, **options: Any) -> bool:
    """Whether ``argv`` runs and exits with 0."""
    try:
        run(argv, limit_s, **options)
    except Failed:
        return False
    return True


def last_lines(output: bytes, count: int = 1) -> str:
    """The last lines of ``output``, joined to one."""
    return " ".join(output.decode(errors="replace").strip().splitlines()[-count:])


def run_once(
    purpose: str, image: str, source: str, options: Sequence[str], *, words: Sequence[str] = (), limit_s: float = 120
) -> None:
    """Run a Python program in a temporary container of ``image``.

    Raises:
        Failed: as in ``run``.
    """
    with docker.named(purpose, lambda argv: run(argv, 20)) as name:
        run([*docker.run_once(image, "python3", source, [*name, *options]), *words], limit_s)


def watched(argv: list[str], tell: Callable[[bytes], None], **options: Any) -> tuple[int, bytes]:
    """Run ``argv``; return its exit code and the last part of its output.

    ``tell`` gets the last output once a second; if it raises, the program is ended. ``options`` as in ``started``.
    """
    tail, reported_at = b"", 0.0
    with started(argv, **options) as process:
        for chunk in chunks(process, 1):
            tail = (tail + chunk)[-_TAIL_BYTES:]
            if time.monotonic() - reported_at >= 1:
                reported_at = time.monotonic()
                tell(tail)
    return process.returncode, tail


def inspect(argv: list[str]) -> Any:
    """The output of ``docker inspect`` for a container or image; None if it does not exist."""
    try:
        return json.loads(run(argv))[0]
    except Failed as error:
        if docker.is_missing(str(error)):
            return None
        raise


@contextlib.contextmanager
def started(argv: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A running program; waits for its exit, and kills it if the block raises.

    ``options`` are those of ``subprocess.Popen``. By default its input is empty, and its output is read by ``chunks``.
    """
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        process = subprocess.Popen(argv, **{**streams, **options})
    except FileNotFoundError:
        raise Failed("%s is not installed" % argv[0]) from None
    except OSError as error:
        raise Failed("%s: %s" % (argv[0], (error.strerror or str(error)).lower())) from None
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def chunks(process: subprocess.Popen[bytes], pause_s: float) -> Iterator[bytes]:
    """The output of ``process`` as it arrives, until its end; an empty chunk after each ``pause_s`` without output."""
    output = process.stdout.fileno()  # type: ignore[union-attr]
    while True:
        if not select.select([output], [], [], pause_s)[0]:
            yield b""
            continue
        chunk = os.read(output, 1 << 20)
        if not chunk:
            return
        yield chunk
