"""Reports that go to a file: seen to be writable before anything is asked, and then written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sparkcluster.errors import UsageError


def check_path(path: Path, example: str) -> None:
    """Make sure that ``path`` can be written.

    Args:
        path: where the report shall go.
        example: flag and name of file to type where ``path`` is a directory; ``{}`` stands for that.

    Raises:
        UsageError: it cannot, or is a device or a pipe, in whose place a file would be put.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint=example.format(path))
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is no regular file", hint="name a file; --json writes to stdout")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no {path.parent}", hint=f"mkdir -p {path.parent}")
    if not os.access(path.resolve().parent, os.W_OK):
        raise UsageError(f"{path} cannot be written: permission denied", hint="name a file that you may write")


def write(path: Path, content: bytes) -> None:
    """Write at once, so that nobody reads half of it; through a link, into the file that it leads to.

    Raises:
        UsageError: it cannot be written, though it seemed so before.
    """
    temporary = None
    try:
        target = path.resolve()
        with tempfile.NamedTemporaryFile("wb", dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(content)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="name another file") from None
