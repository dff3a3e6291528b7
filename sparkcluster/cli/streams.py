"""What happens where nobody takes the output: a closed pipe is quiet, and a full disk is one error."""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False  # as in main
if TYPE_CHECKING:
    from typing import Any


class _Output(io.FileIO):
    """The unbuffered side of stdout or stderr.

    After the first failed write the rest is discarded: a closed pipe does not end a command half done, and its exit
    code is its own. Only what stdout cannot store is raised, once; for messages to stderr there is no other place.
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
    """Replace ``sys.stdout`` and ``sys.stderr``, so that a failed write is dealt with wherever it happens."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # its descriptor was closed at the start
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
            continue
        buffer = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
        # Names from other machines, and what is drawn, may have characters that this locale cannot encode.
        lines = stream.line_buffering or stream.write_through
        setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, "backslashreplace", line_buffering=lines))


def check_reader() -> None:
    """End a command that writes until it is stopped once its reader has closed stdout, as ``head`` does."""
    if getattr(getattr(getattr(sys.stdout, "buffer", None), "raw", None), "reader_gone", False):
        raise SystemExit(0)
