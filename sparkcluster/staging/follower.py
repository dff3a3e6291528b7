"""The worker on one node, as it is seen from here: begun or found at work, ordered, and followed to its end."""

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
"""All that a worker said last, or how it ended."""


class Follower:
    """Follows the worker on ``host`` that ``request`` and the list of files ``content`` begin.

    ``heard`` gets the name of the node and what happens, from the thread of ``run``. What follows it on the node ends
    with the worker, else with the connection.
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
        """Order this, of which each name replaces what was ordered by it before."""
        with self._lock:
            self._ordered |= order
            with contextlib.suppress(HostError):  # who reads hears of it
                if self._running is not None:
                    self._running.send(json.dumps(order).encode() + b"\n")

    def run(self) -> None:
        """Begin, and follow the worker to the end."""
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
        except BaseException as error:  # noqa: BLE001 - raised by who hears of it
            self._heard((node, error))
