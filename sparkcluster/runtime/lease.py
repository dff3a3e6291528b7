"""The lease: only one operator at a time may change a cluster, and none whose controller has gone silent.

Staging has its own lease, which excludes another staging of the same cluster, but no start, stop or status. The start
lock is also a lease, shared by all clusters of a node: only one cluster at a time stops and starts ranks.

On every node a small process holds a file lock while heartbeats arrive over the operator's connection. It releases the
lock when the connection ends, or ``TTL_S`` seconds after the last heartbeat; so a controller that was suspended, cut
off or killed loses the lease. Every node counts its leases. A change carries the epoch of its node, which refuses an
epoch that is over.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import threading
import time
from collections.abc import Callable, Collection
from typing import Literal, Self

from sparkcluster.errors import HostError, LeaseHeld, SparkclusterError
from sparkcluster.facts.base import Fact, Number
from sparkcluster.facts.model import LeaseFact
from sparkcluster.hosts.base import SILENT_S, Closing, Host
from sparkcluster.hosts.fleet import Fleet, all_values, failures
from sparkcluster.hosts.program import Conversation, Conversations
from sparkcluster.report import Report
from sparkcluster.runtime.change import Changer, LeaseKind
from sparkcluster.spec import Inventory

Operation = Literal[
    "up", "upgrade", "rollback", "restart", "bench", "down", "enable", "disable", "stage", "prune", "measure"
]

TTL_S = SILENT_S
HEARTBEAT_S = 3
RETRY_S = 2.0
START_WAIT_S = 3600.0
"""Longest wait for the start lock: twice the default time limit for a start."""
_ANSWER_S = 20


def this_operator() -> str:
    """Who is changing the cluster, as user@host (pid), for other operators."""
    return f"{getpass.getuser()}@{socket.gethostname()} (pid {os.getpid()})"


class _Answer(Fact):
    """Who holds the lease, or the last epoch; ``busy`` is why no epoch was granted."""

    held: LeaseFact | None = None
    epoch: Number = 0
    busy: str | None = None


class Lease(Closing):
    """A lease on all nodes of a cluster: to change it, to stage for it, or to start ranks. Use as a context manager.

    ``operation`` is shown to operators who have to wait.

    Attributes:
        changer: changes nodes under this lease.
    """

    def __init__(self, fleet: Fleet, inventory: Inventory, operation: Operation, kind: LeaseKind = "cluster") -> None:
        self.changer = Changer(fleet, inventory.cluster, inventory.state_dir, {}, kind, operation)
        self._programs = Conversations("lease")
        self._holders: dict[str, Conversation] = {}

    def acquire(self, names: list[str], *, lost: dict[str, SparkclusterError] | None = None) -> Self:
        """Take the lease on the nodes ``names``.

        The first node by name is asked before the others, so that one of two operators always proceeds. If ``lost`` is
        given, nodes that could not be asked or gave a malformed answer are put into it, and the lease covers the
        others.

        Raises:
            LeaseHeld: another operator has it, or a change of the previous operator is still running; nothing was
                taken.
            HostError: a node could not be asked; nothing was taken.
        """
        names = sorted(names)
        try:
            for asked in names[:1], names[1:]:
                self._all(self._take, asked, lost)
            self._all(self._grant, list(self.changer.epochs), lost)
        except BaseException:
            self.close()
            raise
        return self

    def _all(self, ask: Callable[[Host], None], names: list[str], lost: dict[str, SparkclusterError] | None) -> None:
        outcomes = self.changer.fleet.each(ask, names)
        if lost is not None:
            lost |= {name: error for name, error in failures(outcomes).items() if isinstance(error, HostError)}
            outcomes = {name: outcome for name, outcome in outcomes.items() if name not in lost}
        all_values(outcomes)

    def _take(self, host: Host) -> None:
        """Start the program that holds the lease on ``host``."""
        who = {"operator": this_operator(), "operation": self.changer.operation, "ttl_s": TTL_S}
        request = {**self.changer.lease(host.name), **who}
        holder = self._holders[host.name] = self._programs.start(host, request, silence_s=_ANSWER_S)
        said = holder.answer(_Answer)
        if said.held is not None:
            about = said.held.describe(said.held.cluster or self.changer.cluster, time.time())
            raise LeaseHeld(
                f"another start or stop is running: {about}" if self.changer.kind == "start" else about,
                node=host.name,
                step="lease",
                hint="wait until it ends, or stop it where it was started; the lease of a killed command expires "
                f"after {TTL_S:.0f} s; if a guard holds it: sparkcluster disable INVENTORY; if the lease is held even "
                f"then: reboot {host.name}, which stops all models on it",
            )
        # Each in its own thread, so that a hanging node does not delay the others.
        threading.Thread(target=self._feed, args=(holder,), name=f"lease {host.name}", daemon=True).start()
        self.changer.epochs[host.name] = said.epoch + 1

    def _feed(self, holder: Conversation) -> None:
        """Send heartbeats; a holder that gets none releases the lease, and its node refuses the next change."""
        with contextlib.suppress(HostError):
            while not self._programs.closed:
                holder.say({})
                time.sleep(HEARTBEAT_S)

    def _grant(self, host: Host) -> None:
        holder = self._holders[host.name]
        holder.say({"grant": self.changer.epochs[host.name]})
        said = holder.answer(_Answer)
        if said.busy is not None:
            hint = "retry in a minute"
            raise LeaseHeld(f"on {host.name} {said.busy}", node=host.name, step="lease", hint=hint)

    def close(self) -> None:
        """Release the lease on every node."""
        self._programs.close()


def wait_for(
    make: Callable[[], Lease],
    names: Collection[str],
    report: Report,
    limit_s: float,
    lost: dict[str, SparkclusterError] | None = None,
) -> Lease:
    """Create a lease with ``make`` and acquire it on ``names``; if it is held, retry for up to ``limit_s``.

    The holder is reported meanwhile. ``lost``: as in ``Lease.acquire``.

    Raises:
        LeaseHeld: it is still held after that.
    """
    until = time.monotonic() + limit_s
    while True:
        try:
            return make().acquire([name for name in names if name not in (lost or ())], lost=lost)
        except LeaseHeld as held:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise
            report.progress(held.node or "", f"waiting up to {left_s:.0f} s: {held.message}")
            time.sleep(RETRY_S)
