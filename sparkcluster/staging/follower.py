"""Controls the worker on one node from here: starts or finds it, sends orders, and follows it to its end."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from typing import Any

from sparkcluster.errors import HostError
from sparkcluster.hosts.base import Host, Stream
from sparkcluster.hosts.program import stream
from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.copy import Failure, Step, answers, stage_errors
from sparkcluster.staging.order import WorkerLine

Event = WorkerLine | Failure | BaseException
"""The last state of a worker, or how it ended."""


class Follower:
    """Starts the worker on ``host`` with ``request`` and the list of files ``content``, and follows it.

    ``heard`` gets the name of the node and each event, in the thread of ``run``. The program that follows on the node
    ends with the worker or with the connection.
    """

    def __init__(
        self, step: Step, host: Host, request: Request, content: bytes, heard: Callable[[tuple[str, Event]], None]
    ) -> None:
        self._step, self._host, self._request, self._content = step, host, request, content
        self._heard = heard
        self._running: Stream | None = None
        self._ordered: dict[str, Any] = {}
        self._lock = threading.Lock()

    def order(self, order: dict[str, Any]) -> None:
        """Send an order; each of its keys replaces an earlier order with that key."""
        with self._lock:
            self._ordered |= order
            with contextlib.suppress(HostError):  # the reader reports it
                if self._running is not None:
                    self._running.send(json.dumps(order).encode() + b"\n")

    def run(self) -> None:
        """Start the worker and follow it to its end."""
        node, said = self._host.name, WorkerLine()
        try:
            request = {**self._request, **self._step.lease(node)}
            with stage_errors(self._step, node), stream(self._host, "worker", request, self._content) as running:
                with self._lock:
                    self._running = running
                    if self._ordered:
                        running.send(json.dumps(self._ordered).encode() + b"\n")
                for line in answers(self._step, node, running, WorkerLine):
                    if isinstance(line, Failure):
                        self._heard((node, line))
                        return
                    said = said.model_copy(update={name: getattr(line, name) for name in line.model_fields_set})
                    self._heard((node, said))
                self._heard((node, Failure(node, "other", running.finish().reason)))
        except BaseException as error:  # noqa: BLE001 - raised by the receiver of ``heard``
            self._heard((node, error))
