"""Makes complete files visible below a directory.

A file arrives next to its target and is renamed to it and recorded; a user's file in its place is moved aside. The
links and the ref of the hub's cache, which mark a copy as complete, come last.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import stat
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sparkcluster.node.file_hashes import Record, hash_file
from sparkcluster.node.file_list import Listed
from sparkcluster.node.model_files import forget
from sparkcluster.node.shared import MOST_NAMED, REPLACED
from sparkcluster.node.tree import Tree


class Publisher:
    """Renames the ``files`` of a job in ``tree`` after they have arrived, and records them.

    ``request`` as in ``Files``. ``gate`` is called before every change, ``reading`` while a file is read.

    Attributes:
        replace: numbers of corrupt files to replace.
        kept: new paths of the user's files that were moved aside.
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
        there = self._revision is None or tree.status("snapshots/%s" % self._revision) is not None
        self._made = None if there else self._revision
        self._record = Record(request["state_dir"], tree.root)
        self._recording = threading.Lock()

    def large(self, number: int, partial: str, sha256: str) -> None:
        """Make a synced file visible, from ``partial``, with its ``sha256``."""
        self._publish(number, partial, sha256)
        self.save()

    def small(self, arrived: Iterable[tuple[int, str, str]]) -> Iterator[int]:
        """Make unsynced files visible, given by number, partial name and SHA-256; yields their numbers."""
        # one sync for thousands of files
        if subprocess.call(["sync", "--file-system", self._tree.root]):
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._tree.root)
        for number, partial, sha256 in arrived:
            self._publish(number, partial, sha256)
            yield number
        self.save()

    def _publish(self, number: int, partial: str, sha256: str) -> None:
        """Rename a file, and record it as written by staging unless it replaces a user's file."""
        self._gate()
        path, in_cache = self._files[number].path, self._revision is not None
        before, own = self._tree.status(path), self._tree.status(path, follow=False)
        ours = before is None or self._record.is_ours(path, before)
        is_link = own is not None and stat.S_ISLNK(own.st_mode)
        is_caches = in_cache and (is_link or path.startswith("blobs/"))
        if own is not None and not is_caches and (is_link or not (ours or number in self.replace)):
            self._keep(path)
        self._tree.move(partial, path)
        with self._recording, self._tree.reader(path) as file:
            forget(file.fileno())
            self._record.add(path, os.fstat(file.fileno()), sha256, ours=ours)

    def _keep(self, path: str) -> None:
        """Rename the user's file to ``NAME.replaced``, or ``NAME-1.replaced``."""
        names = (path + ("-%d" % place if place else "") + REPLACED for place in itertools.count())
        aside = next(name for name in names if self._tree.status(name, follow=False) is None)
        self._tree.move(path, aside)
        with self._recording:
            self.kept = [*self.kept, os.path.join(self._tree.root, aside)][-MOST_NAMED:]

    def _clear(self, link: str, number: int) -> None:
        """Move aside a user's file in the place of a link, unless it has the same content."""
        own = self._tree.status(link, follow=False)
        if own is None or stat.S_ISLNK(own.st_mode) or self._record.is_ours(link, own):
            return
        size, sha256 = self._files[number].size, self._files.sha256(number)
        whole = os.path.join(self._tree.root, link)
        if own.st_size != size or hash_file(hashlib.sha256(), whole, lambda _size: self._reading()) != sha256:
            self._keep(link)

    def finish(self) -> None:
        """Create links and the ref, which come last."""
        for number, file in enumerate(self._files):
            for link in file.links if number in self.replace or not self._request.get("keep") else ():
                self._gate()
                self._clear(link, number)
                self._tree.link(link, os.path.relpath(file.path, os.path.dirname(link)))
        ref, revision = self._request.get("ref"), self._revision
        if ref and revision and ref != revision:
            folder, name = os.path.split("refs/" + ref)
            partial = "%s/.%s.partial" % (folder, name)
            with self._tree.writer(partial) as out:
                out.write(revision.encode())
                out.flush()
                os.fsync(out.fileno())
            self._gate()
            self._tree.move(partial, "refs/" + ref)
        self.save()

    def note(self, number: int, status: os.stat_result, sha256: str) -> None:
        """Record a file of this node that was read while serving it."""
        with self._recording:
            self._record.add(self._files[number].path, status, sha256)
        self.save()

    def save(self) -> None:
        """Write the record."""
        with self._recording:
            self._record.save(self._request["cluster"], self._made)
