"""Access to files below a directory without following links.

Each directory is opened from its parent, so that nothing outside can be written, whatever links are in the tree. Only
the root and its parents may be links: the node's user chose them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

from sparkcluster.node.wire import Failed

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Tree:
    """The directory ``root``, created if missing. Paths are relative to it; an OSError has the full path."""

    def __init__(self, root: str) -> None:
        os.makedirs(root, exist_ok=True)
        self.root = root
        self.handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def lock(self, wait_s: float = 0.0, gate: Callable[[], None] = lambda: None) -> None:
        """Take the lock until this process exits; ``gate`` is called while another process has it.

        Some file systems have no locks; this is ignored.

        Raises:
            Failed: another process has it for more than ``wait_s``.
        """
        limit = time.monotonic() + wait_s
        while True:
            try:
                return fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= limit:
                    raise Failed("other", "another copy to %s is in progress" % self.root) from None
            except OSError:
                return None
            gate()
            time.sleep(0.1)

    @contextlib.contextmanager
    def parent(self, path: str, *, make: bool = True) -> Iterator[tuple[int, str]]:
        """Descriptor of the parent directory of ``path``, created if ``make``, and the last component."""
        parts = path.split("/")
        if {"", ".", ".."} & set(parts):
            raise OSError(errno.EINVAL, "not below %s" % self.root, path)
        place = self.root
        handle = os.dup(self.handle)
        try:
            for part in parts[:-1]:
                place = os.path.join(place, part)
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=handle)
                inner = os.open(part, _FOLDER, dir_fd=handle)
                os.close(handle)
                handle = inner
            place = os.path.join(place, parts[-1])
            yield handle, parts[-1]
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                error = OSError(errno.ENOTDIR, "expected a directory, found a link or a file")
            error.filename, error.filename2 = place, None
            raise error from None
        finally:
            os.close(handle)

    def size(self, path: str) -> int:
        """Size of the regular file at ``path``, following a link; -1 if there is none."""
        status = self.status(path)
        return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else -1

    def status(self, path: str, *, follow: bool = True) -> os.stat_result | None:
        """Status of ``path``, with ``follow`` of the link's target; None if it does not exist."""
        with contextlib.suppress(FileNotFoundError), self.parent(path, make=False) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=follow)
        return None

    def remove(self, path: str) -> None:
        """Remove a file, or a link and not its target."""
        with self.parent(path, make=False) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def reader(self, path: str) -> BinaryIO:
        """Open a file for reading."""
        with self.parent(path, make=False) as (folder, name):
            return os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder), "rb")

    def writer(self, path: str, offset: int = 0) -> BinaryIO:
        """Open a regular file for writing at ``offset``; for offset 0, replace it with a new file."""
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        with self.parent(path) as (folder, name):
            if not offset:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
                flags |= os.O_CREAT | os.O_EXCL
            file = os.fdopen(os.open(name, flags, 0o644, dir_fd=folder), "wb")
        file.truncate(offset)
        file.seek(offset)
        return file

    def move(self, path: str, target: str) -> None:
        """Rename a file within its directory, replacing ``target``."""
        with self.parent(target) as (folder, name):
            os.replace(os.path.basename(path), name, src_dir_fd=folder, dst_dir_fd=folder)

    def link(self, path: str, target: str) -> None:
        """Make ``path`` a link to ``target``, a path relative to its directory."""
        with self.parent(path) as (folder, name):
            with contextlib.suppress(OSError):
                if os.readlink(name, dir_fd=folder) == target:
                    return
            spare = ".link-%d.partial" % os.getpid()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(spare, dir_fd=folder)
            os.symlink(target, spare, dir_fd=folder)
            os.replace(spare, name, src_dir_fd=folder, dst_dir_fd=folder)
