"""Changes nodes: sends a list of steps to the agent on each, to all nodes at the same time, under one lease."""

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
"""What a lease protects: a cluster's ranks and records, its staging, or starting and stopping ranks on a node."""

_AGAIN = {
    **dict.fromkeys(("upgrade", "rollback", "restart", "bench"), "upgrade INVENTORY --resume"),
    "prune": "models INVENTORY --prune",
    "measure": "preflight INVENTORY --deep",
}
"""The command that continues an interrupted operation, if its name differs from the operation's."""


class Failed(Fact):
    """The step that failed on a node, and why."""

    step: str
    message: str


class Freed(Fact):
    """The result of ``prune``: bytes that were freed, by root directory."""

    freed: dict[Path, Number]


class Evicted(Fact):
    """The result of ``evict``: MemFree before and after the page cache was dropped; the error for the image."""

    free_before_bytes: int
    free_bytes: int
    image_failed: str | None = None


class Installed(Fact):
    """The result of ``enable``: the guard's systemd unit (None without systemd) and its command."""

    unit: str | None
    command: tuple[str, ...]


_RESULTS: Mapping[str, type[Fact]] = {"prune": Freed, "evict": Evicted, "enable": Installed}
"""Models of results by step; other results are not used."""


class Changed(Fact):
    """The answer of the agent; exactly one field is set."""

    results: tuple[dict[str, Any], ...] | None = None
    refused: str | None = None
    failed: Failed | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Changer:
    """Changes the nodes of a cluster under a lease, which has its own epoch on each node.

    Attributes:
        state_dir: as in the inventory; ``~`` is the user's home on each node.
        kind: kind of the lease.
        operation: the command that took the lease.
    """

    fleet: Fleet
    cluster: str
    state_dir: str
    epochs: dict[str, int]
    kind: LeaseKind = "cluster"
    operation: str = ""

    def lease(self, node: str) -> dict[str, Any]:
        """The lease in a request to ``node``; no node grants epoch 0."""
        epoch = self.epochs.get(node, 0)
        return {"state_dir": self.state_dir, "cluster": self.cluster, "epoch": epoch, "kind": self.kind}

    def attempt(
        self, steps: Mapping[str, Sequence[Step]], *, timeout_s: float
    ) -> dict[str, list[Any] | SparkclusterError]:
        """Run ``steps`` by node; return each node's results (a model for each step) or its error.

        A later attempt is never overtaken by an earlier one, even if the earlier one was given up.
        """
        more = {"order": time.monotonic_ns(), "wait_s": timeout_s / 2}  # only one process holds a lease

        def change(host: Host) -> list[Any]:
            return _change(host, {**self.lease(host.name), **more, "steps": list(steps[host.name])}, timeout_s)

        outcomes = self.fleet.each(change, [name for name in steps if steps[name]])
        for error in failures(outcomes).values():
            if isinstance(error, HostSilent):
                self.left(error)
        return outcomes

    def apply(self, steps: Mapping[str, Sequence[Step]], *, timeout_s: float = 120) -> dict[str, list[Any]]:
        """Run ``steps`` by node; raise the first error once all nodes have answered.

        Raises:
            LeaseLost: the lease on a node was lost; nothing was changed there.
            HostSilent: a node did not answer; a step may still be running there.
            SparkclusterError: a step failed on a node.
        """
        return all_values(self.attempt(steps, timeout_s=timeout_s))

    def left(self, error: HostSilent) -> HostSilent:
        """Add to ``error`` the command that continues the work still running on its node."""
        command = _AGAIN.get(self.operation, f"{self.operation} INVENTORY")
        error.hint = f"sparkcluster {command}   continues the work that is running on {error.node}"
        return error


def _change(host: Host, request: dict[str, Any], timeout_s: float) -> list[Any]:
    """Send ``request`` to the agent and return its results."""
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
    """The error for a change that ``node`` refused."""
    return LeaseLost(
        f"{node} refused the change: {why}",
        node=node,
        step=step,
        hint="sparkcluster status INVENTORY   shows who holds the lease; then retry: completed steps are kept",
    )
