"""Makes files visible that arrived whole, below one directory.

What arrived next to its target is renamed to it, and recorded; what a user has there is set aside. What makes a copy
complete comes last: the links and the ref of the hub's cache.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sparkcluster.node.file_hashes import Record, hash_file
from sparkcluster.node.file_list import Listed
from sparkcluster.node.model_files import forget
from sparkcluster.node.shared import MOST_NAMED
from sparkcluster.node.tree import Tree
from sparkcluster.node.wire import Failed


class Publisher:
    """Gives the ``files`` of a job in ``tree`` their names once they have arrived, and records them.

    ``request`` is that of ``Files``. ``gate`` is called before anything is changed, ``reading`` while a file is read.

    Attributes:
        replace: numbers of files that are there, and corrupt.
        kept: what was set aside, as it is called now.
    """

    def __init__(
        self, request: dict[str, Any], files: Listed, tree: Tree, gate: Callable[[], None], reading: Callable[[], None]
    ) -> None:
        self.replace = set(request.get("replace") or ())
        self.kept: list[str] = []
        self._request = request
        self._revision: str | None = request.get("revision")
        self._files = files
        self._tree = tree
        self._gate = gate
        self._reading = reading
        there = self._revision is None or tree.own_status("snapshots/%s" % self._revision) is not None
        self._made = None if there else self._revision
        self._record = Record(request["state_dir"], tree.root)
        self._recording = threading.Lock()

    def large(self, number: int, partial: str, descriptor: int, sha256: str) -> None:
        """Make a file visible that was synced: it is in ``partial``, and has ``sha256``."""
        self._gate()
        self._move(number, partial, os.fstat(descriptor), sha256)
        self.save()

    def small(self, arrived: Iterable[tuple[int, str, str]]) -> Iterator[int]:
        """Make files visible that were not synced, by number, partial name and SHA-256; the numbers, one by one."""
        _sync_file_system(self._tree.root)
        for number, partial, sha256 in arrived:
            self._gate()
            with self._tree.reader(partial) as found:
                forget(found.fileno())
                status = os.fstat(found.fileno())
            self._move(number, partial, status, sha256)
            yield number
        self.save()

    def _move(self, number: int, partial: str, status: os.stat_result, sha256: str) -> None:
        path = self._files[number].path
        before = self._tree.status(path)
        ours = before is None or self._record.is_ours(path, before)
        whole = os.path.join(self._tree.root, path)
        if number in self.replace and self._revision is None and os.path.islink(whole):
            text = "%s is corrupt, and a link, which is not replaced; it leads to %s"
            raise Failed("linked", text % (whole, os.path.realpath(whole)))
        if number not in self.replace and not (self._revision and path.startswith("blobs/")):
            self._set_aside(path, number)
        self._tree.move(partial, path)
        with self._recording:
            self._record.add(path, status, sha256, ours=ours)

    def _set_aside(self, path: str, number: int) -> None:
        """Keep what the user has in the place of a file, unless it is the same, or staging wrote it."""
        found = self._tree.own_status(path)
        is_link = found is not None and stat.S_ISLNK(found.st_mode)
        if found is None or self._record.is_ours(path, found) or (is_link and self._revision is not None):
            return
        whole = os.path.join(self._tree.root, path)
        if not is_link and found.st_size == self._files[number].size:
            sha256 = hash_file(hashlib.sha256(), whole, lambda _size: self._reading())
            if sha256 == self._files.sha256(number):
                return
        aside = self._tree.set_aside(path)
        with self._recording:
            self.kept = [*self.kept, aside][-MOST_NAMED:]

    def finish(self) -> None:
        """Links and the ref come last."""
        for number, file in enumerate(self._files):
            for link in file.links if number in self.replace or not self._request.get("keep") else ():
                self._gate()
                self._set_aside(link, number)
                self._tree.link(link, os.path.relpath(file.path, os.path.dirname(link)))
        ref, revision = self._request.get("ref"), self._revision
        if ref and revision and ref != revision:
            folder, name = os.path.split("refs/" + ref)
            partial = "%s/.%s.partial" % (folder, name)
            with self._tree.writer(partial) as out:
                out.write(revision.encode())
            self._tree.move(partial, "refs/" + ref)
        self.save()

    def note(self, number: int, status: os.stat_result, sha256: str) -> None:
        """Record a file of this node that was read while it was served."""
        with self._recording:
            self._record.add(self._files[number].path, status, sha256)
        self.save()

    def save(self) -> None:
        """Write the record."""
        with self._recording:
            self._record.save(self._request["cluster"], self._made)


def _sync_file_system(path: str) -> None:
    """Write everything of a file system to its disk; thousands of small files at once, in place of one by one."""
    if subprocess.call(["sync", "--file-system", path]):
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)
