"""Changing nodes: lists of steps go to the agent on each, all nodes at once, under one epoch."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster.errors import CommandFailed, LeaseLost, SparkclusterError
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet, all_values
from sparkcluster.hosts.program import call

Step = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Changer:
    """The right to change a cluster's nodes under the ``epoch`` of a lease.

    ``state_dir`` is the inventory's; ``~`` stands for the user's home on each node.
    """

    fleet: Fleet
    cluster: str
    state_dir: str
    epoch: int

    def attempt(
        self, steps: Mapping[str, Sequence[Step]], *, timeout_s: float
    ) -> dict[str, list[dict[str, Any]] | SparkclusterError]:
        """Run ``steps`` by node and return every node's results or what stopped it.

        An attempt that comes after another is never overtaken by it, even where the other was given up.
        """
        order = time.monotonic_ns()  # one process holds an epoch, however many of us it makes

        def change(host: Host) -> list[dict[str, Any]]:
            request = {
                "state_dir": self.state_dir,
                "cluster": self.cluster,
                "epoch": self.epoch,
                "order": order,
                "wait_s": timeout_s / 2,
                "steps": list(steps[host.name]),
            }
            answer = call(host, "agent", request, timeout_s=timeout_s, task=steps[host.name][-1]["do"])
            if "refused" in answer:
                raise LeaseLost(
                    f"{host.name} refuses the change: {answer['refused']}",
                    node=host.name,
                    step=str(steps[host.name][-1]["do"]),
                    hint="run sparkcluster status to see who is changing it, then run this again",
                )
            if "failed" in answer:
                failed = answer["failed"]
                raise CommandFailed(
                    f"{failed['step']} failed on {host.name}: {failed['message']}",
                    node=host.name,
                    step=failed["step"],
                )
            results: list[dict[str, Any]] = answer["results"]
            return results

        return self.fleet.each(change, [name for name in steps if steps[name]])

    def apply(self, steps: Mapping[str, Sequence[Step]], *, timeout_s: float = 120) -> dict[str, list[dict[str, Any]]]:
        """Run ``steps`` by node; raises the first error once every node has answered.

        Raises:
            LeaseLost: a node knows a newer epoch; nothing was changed there.
            SparkclusterError: a step failed on a node.
        """
        return all_values(self.attempt(steps, timeout_s=timeout_s), LeaseLost)
