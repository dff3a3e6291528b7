"""Reads files whose SHA-256 is unknown, while they are served."""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
from collections.abc import Callable

from sparkcluster.node.file_hashes import hash_file, stamp_of
from sparkcluster.node.wire import Failed

_THREADS = 3


class Hasher:
    """Reads files whose SHA-256 is unknown, while they are served; ``note`` gets each that was not changed."""

    def __init__(self, gate: Callable[[], None], note: Callable[[int, os.stat_result, str], None]) -> None:
        self.found: dict[int, str] = {}
        self.failed: OSError | None = None
        self._gate = gate
        self._note = note
        self._seen: set[int] = set()
        self._queue: queue.PriorityQueue[tuple[bool, int, str]] = queue.PriorityQueue()
        self._threads = 0

    def read(self, number: int, path: str, *, urgent: bool = True) -> None:
        """Read a file, once; those that are not ``urgent`` come last."""
        if number not in self._seen:
            self._queue.put((not urgent, number, path))
            if urgent:
                self._seen.add(number)
            if self._threads < _THREADS:
                self._threads += 1
                threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(Failed):  # the job is over
            while True:
                _, number, path = self._queue.get()
                if number in self.found:
                    continue
                try:
                    before = os.stat(path)
                    sha256 = hash_file(hashlib.sha256(), path, lambda _size: self._gate())
                    after = os.stat(path)
                except OSError as error:
                    self.failed = error
                    return
                self.found = {**self.found, number: sha256}
                if stamp_of(before) == stamp_of(after):
                    self._note(number, after, sha256)
