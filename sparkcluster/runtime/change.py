"""Changing nodes: lists of steps go to the agent on each, all nodes at once, under one lease."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sparkcluster.answers import checked, malformed
from sparkcluster.errors import CommandFailed, HostSilent, LeaseLost, SparkclusterError
from sparkcluster.facts.base import Fact, Number, Path
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet, all_values, failures
from sparkcluster.hosts.program import call

Step = dict[str, Any]
LeaseKind = Literal["cluster", "staging", "start"]
"""What a lease is for: ranks and records of a cluster, what is staged for it, or starting and stopping on a node."""

_AGAIN = {
    **dict.fromkeys(("upgrade", "rollback", "restart", "bench"), "upgrade INVENTORY --resume"),
    "prune": "models INVENTORY --prune",
    "measure": "preflight INVENTORY --deep",
}
"""What continues an operation that was cut off, if not the command of that name."""


class Failed(Fact):
    """The step that failed on a node, and why."""

    step: str
    message: str


class Freed(Fact):
    """The result of ``prune``: the bytes of what was removed, by root."""

    freed: dict[Path, Number]


class Evicted(Fact):
    """The result of ``evict``: MemFree before and after the page cache was dropped, and why the image's was not."""

    free_before_bytes: int
    free_bytes: int
    image_failed: str | None = None


class Installed(Fact):
    """The result of ``enable``: the guard's systemd unit, None without systemd, and the command that it runs."""

    unit: str | None
    command: tuple[str, ...]


_RESULTS: Mapping[str, type[Fact]] = {"prune": Freed, "evict": Evicted, "enable": Installed}
"""By step; what others result in is not used."""


class Changed(Fact):
    """The answer of the agent: one of the three."""

    results: tuple[dict[str, Any], ...] | None = None
    refused: str | None = None
    failed: Failed | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Changer:
    """The right to change a cluster's nodes under a lease, which has an epoch of its own on each.

    Attributes:
        state_dir: the inventory's; ``~`` stands for the user's home on each node.
        kind: of the lease.
        operation: the command that took the lease.
    """

    fleet: Fleet
    cluster: str
    state_dir: str
    epochs: dict[str, int]
    kind: LeaseKind = "cluster"
    operation: str = ""

    def lease(self, node: str) -> dict[str, Any]:
        """The lease as every request to ``node`` has it; no node grants epoch 0."""
        epoch = self.epochs.get(node, 0)
        return {"state_dir": self.state_dir, "cluster": self.cluster, "epoch": epoch, "kind": self.kind}

    def attempt(
        self, steps: Mapping[str, Sequence[Step]], *, timeout_s: float
    ) -> dict[str, list[Any] | SparkclusterError]:
        """Run ``steps`` by node and return every node's results, one of its model for each step, or what stopped it.

        An attempt that comes after another is never overtaken by it, even where the other was given up.
        """
        more = {"order": time.monotonic_ns(), "wait_s": timeout_s / 2}  # one process holds a lease

        def change(host: Host) -> list[Any]:
            return _change(host, {**self.lease(host.name), **more, "steps": list(steps[host.name])}, timeout_s)

        outcomes = self.fleet.each(change, [name for name in steps if steps[name]])
        for error in failures(outcomes).values():
            if isinstance(error, HostSilent):
                self.left(error)
        return outcomes

    def apply(self, steps: Mapping[str, Sequence[Step]], *, timeout_s: float = 120) -> dict[str, list[Any]]:
        """Run ``steps`` by node; raises the first error once every node has answered.

        Raises:
            LeaseLost: the lease on a node is over; nothing was changed there.
            HostSilent: a node did not answer; what was begun there may go on.
            SparkclusterError: a step failed on a node.
        """
        return all_values(self.attempt(steps, timeout_s=timeout_s), LeaseLost)

    def left(self, error: HostSilent) -> HostSilent:
        """``error`` with the command that continues what goes on without us on its node."""
        command = _AGAIN.get(self.operation, f"{self.operation} INVENTORY")
        error.hint = f"sparkcluster {command}   continues, once {error.node} can be reached: its work goes on"
        return error


def _change(host: Host, request: dict[str, Any], timeout_s: float) -> list[Any]:
    """What the agent answers to ``request``."""
    steps = request["steps"]
    task = str(steps[-1]["do"])
    answer = call(host, "agent", request, answer=Changed, timeout_s=timeout_s, task=task)
    if answer.refused is not None:
        raise refusal(host.name, answer.refused, task)
    if answer.failed is not None:
        step, why = answer.failed.step, answer.failed.message
        raise CommandFailed(f"{step} failed on {host.name}: {why}", node=host.name, step=step)
    results = answer.results or ()
    if len(results) != len(steps):
        raise malformed(host.name, task, f"{len(results)} results of {len(steps)} steps")
    return [
        checked(_RESULTS.get(step["do"], Fact), result, node=host.name, step=step["do"])
        for step, result in zip(steps, results, strict=True)
    ]


def refusal(node: str, why: str, step: str) -> LeaseLost:
    """The error of a change that ``node`` refuses."""
    return LeaseLost(
        f"{node} refuses the change: {why}",
        node=node,
        step=step,
        hint="sparkcluster status INVENTORY   shows who is changing it; then run this again: it continues",
    )
