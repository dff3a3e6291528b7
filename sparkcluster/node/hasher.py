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
    """Reads files, in the order in which they are asked for; ``note`` gets each that was not changed meanwhile.

    ``gate`` is called between two parts of a file, and may raise Failed.
    """

    def __init__(self, gate: Callable[[], None], note: Callable[[int, os.stat_result, str], None]) -> None:
        self.found: dict[int, str] = {}
        self.failed: OSError | None = None
        self._gate, self._note = gate, note
        self._queue: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._threads = 0

    def read(self, number: int, path: str) -> None:
        """Read a file."""
        self._queue.put((number, path))
        if self._threads < _THREADS:
            self._threads += 1
            threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(Failed):  # the job is over
            while True:
                number, path = self._queue.get()
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
