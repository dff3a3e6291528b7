"""Output that cannot be written: a closed pipe is ignored, and a full disk is reported once."""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False  # as in main
if TYPE_CHECKING:
    from typing import Any


class _Output(io.FileIO):
    """The unbuffered side of stdout or stderr.

    After a failed write, further output is discarded: a closed pipe does not stop a command half-way or change its exit
    code. Only an error of stdout that is not a closed pipe is raised, once; errors of stderr cannot be shown.
    """

    reader_gone = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if isinstance(error, BrokenPipeError):
                self.reader_gone = True
            elif self.fileno() == 1:
                from sparkcluster.errors import OutputError

                raise OutputError(f"cannot write to stdout: {error.strerror}") from error
            return memoryview(data).nbytes


def install() -> None:
    """Replace ``sys.stdout`` and ``sys.stderr``, so that every failed write is handled."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # was closed before the start
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
            continue
        buffer = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
        # Names from other machines, and drawings, may have characters that this locale cannot encode.
        lines = stream.line_buffering or stream.write_through
        setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, "backslashreplace", line_buffering=lines))


def check_reader() -> None:
    """End an endless command after its reader closed stdout, as ``head`` does."""
    if getattr(getattr(getattr(sys.stdout, "buffer", None), "raw", None), "reader_gone", False):
        raise SystemExit(0)
