"""Files that a command writes besides stdout: checked before any node is queried, and written atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from sparkcluster.errors import UsageError


def check_path(path: Path, flag: str, name: str) -> None:
    """Check that the file in ``flag`` can be written; ``name`` is an example for the hint.

    Raises:
        UsageError: it cannot be written, or is a device or a pipe, which a file would replace.
    """
    path = path.expanduser()
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint=f"{flag} {path}/{name}")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a regular file", hint=f"{flag} {name}")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no directory {path.parent}", hint=f"mkdir -p {path.parent}")
    if not os.access(path.resolve().parent, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write {path}: permission denied", hint=f"{flag} ~/{name}")


def state_home() -> Path:
    """The user's directory for state of sparkcluster on this machine."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "sparkcluster"


def write(path: Path, fill: Callable[[IO[bytes]], Any], *, private: bool = False) -> None:
    """Write a file atomically with ``fill``; a symlink is followed unless it belongs to another user.

    If ``private``, only its owner may read it.

    Raises:
        UsageError: it cannot be written.
    """
    partial = None
    try:
        link = path.expanduser()
        others = link.is_symlink() and link.lstat().st_uid not in {0, os.geteuid()}
        target = link if others else link.resolve()
        with tempfile.NamedTemporaryFile("wb", dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            partial = Path(file.name)
            fill(file)
        if not private:
            umask = os.umask(0)
            os.umask(umask)
            partial.chmod(0o666 & ~umask)
        partial.replace(target)
    except BaseException as error:
        if partial is not None:
            partial.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise UsageError(f"cannot write {path}: {error.strerror or error}", hint="name another file") from None
