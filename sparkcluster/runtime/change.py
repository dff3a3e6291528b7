"""Changing nodes: lists of steps go to the agent on each, all nodes at once, under one lease."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster.answers import malformed
from sparkcluster.errors import CommandFailed, LeaseLost, SparkclusterError
from sparkcluster.facts.base import Fact
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet, all_values
from sparkcluster.hosts.program import call

Step = dict[str, Any]


class Failed(Fact):
    """The step that failed on a node, and why."""

    step: str
    message: str


class Changed(Fact):
    """The answer of the agent: one of the three."""

    results: tuple[dict[str, Any], ...] | None = None
    refused: str | None = None
    failed: Failed | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Changer:
    """The right to change a cluster's nodes under a lease, which has an epoch of its own on each.

    ``state_dir`` is the inventory's; ``~`` stands for the user's home on each node.
    """

    fleet: Fleet
    cluster: str
    state_dir: str
    epochs: Mapping[str, int]

    def lease(self, node: str) -> dict[str, Any]:
        """The lease as every request to ``node`` has it; no node grants epoch 0."""
        return {"state_dir": self.state_dir, "cluster": self.cluster, "epoch": self.epochs.get(node, 0)}

    def attempt(
        self, steps: Mapping[str, Sequence[Step]], *, timeout_s: float
    ) -> dict[str, list[dict[str, Any]] | SparkclusterError]:
        """Run ``steps`` by node and return every node's results or what stopped it.

        An attempt that comes after another is never overtaken by it, even where the other was given up.
        """
        order = time.monotonic_ns()  # one process holds a lease, however many of us it makes

        def change(host: Host) -> list[dict[str, Any]]:
            request = {
                **self.lease(host.name),
                "order": order,
                "wait_s": timeout_s / 2,
                "steps": list(steps[host.name]),
            }
            task = str(steps[host.name][-1]["do"])
            answer = call(host, "agent", request, answer=Changed, timeout_s=timeout_s, task=task)
            if answer.refused is not None:
                raise LeaseLost(
                    f"{host.name} refuses the change: {answer.refused}",
                    node=host.name,
                    step=task,
                    hint="run sparkcluster status to see who is changing it, then run this again",
                )
            if answer.failed is not None:
                step, why = answer.failed.step, answer.failed.message
                raise CommandFailed(f"{step} failed on {host.name}: {why}", node=host.name, step=step)
            if answer.results is None:
                raise malformed(host.name, task, "it has no results")
            return list(answer.results)

        return self.fleet.each(change, [name for name in steps if steps[name]])

    def apply(self, steps: Mapping[str, Sequence[Step]], *, timeout_s: float = 120) -> dict[str, list[dict[str, Any]]]:
        """Run ``steps`` by node; raises the first error once every node has answered.

        Raises:
            LeaseLost: a node knows a newer epoch; nothing was changed there.
            SparkclusterError: a step failed on a node.
        """
        return all_values(self.attempt(steps, timeout_s=timeout_s), LeaseLost)
