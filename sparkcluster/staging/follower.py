"""The worker on one node, as it is seen from here: begun or found at work, ordered, and followed to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

from sparkcluster.answers import checked
from sparkcluster.errors import HostError, HostSilent, SparkclusterError, StageError
from sparkcluster.hosts.base import SILENT_S, Host, Stream
from sparkcluster.hosts.program import document, stream
from sparkcluster.runtime.change import refusal
from sparkcluster.staging.copy import Failure, Step, stage_error, stage_errors, unexpected, unfinished
from sparkcluster.staging.order import Order, Request, WorkerLine


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """A worker's end as far as it was followed; ``kind`` as ``notes.left_out`` knows it."""

    error: SparkclusterError | None = None
    kind: str = "other"


class Follower:
    """Follows the worker on ``host`` that ``request`` begins, and passes on what it says to ``heard``.

    That gets all that was said last.
    """

    def __init__(
        self, step: Step, host: Host, request: Request, heard: Callable[[str, WorkerLine | Ended], None]
    ) -> None:
        self.name = host.name
        self._said = WorkerLine()
        self._step, self._host, self._request, self._heard = step, host, request, heard
        self._running: Stream | None = None
        self._ordered: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._kind = "other"

    def order(self, **fields: Any) -> None:
        """Order this, of which each name replaces what was ordered by it before."""
        with self._lock:
            self._ordered.update(fields)
            with contextlib.suppress(HostError):  # who reads hears of it
                if self._running is not None:
                    self._running.send(Order(**fields).line())

    def run(self, prepare: Callable[[], None]) -> None:
        """Prepare the node, then follow its worker to the end, which is reported as well."""
        try:
            with stage_errors(self._step, self.name):
                prepare()
                self._follow()
        except SparkclusterError as error:
            self._heard(self.name, Ended(error, "silent" if isinstance(error.__cause__, HostSilent) else self._kind))
        else:
            self._heard(self.name, Ended())

    def close(self) -> None:
        """End what follows it on the node, not the worker."""
        with self._lock:
            if self._running is not None:
                self._running.close()

    def _follow(self) -> None:
        with stream(self._host, "worker", {**self._request, **self._step.lease(self.name)}) as running:
            with self._lock:
                self._running = running
                if self._ordered:
                    running.send(Order(**self._ordered).line())
            try:
                for said in self._lines(running):
                    self._heard(self.name, said)
            finally:
                with self._lock:
                    self._running = None
            if self._said.done is None and not self._ordered.keys() & {"end", "cancel"}:
                raise self._failed(unfinished(self.name, running))

    def _lines(self, running: Stream) -> Iterator[WorkerLine]:
        for line in running.lines(SILENT_S):
            found = document(line)
            if found is None:
                raise self._failed(Failure(self.name, "other", unexpected(line)))
            said = checked(WorkerLine, found, node=self.name, step=self._step.name)
            if said.refused is not None:
                raise refusal(self.name, said.refused, self._step.name)
            if said.failed is not None:
                raise self._failed(Failure(self.name, said.kind, said.failed))
            self._said = self._said.model_copy(update={name: getattr(said, name) for name in said.model_fields_set})
            yield self._said

    def _failed(self, failure: Failure) -> StageError:
        self._kind = failure.kind
        return stage_error(self._step, failure, source=self._request.get("source", ""))
