"""What a command wants to serve, as its user typed it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING

from sparkcluster.runtime.lease import Operation
from sparkcluster.spec import Spec

if TYPE_CHECKING:
    from sparkcluster.release.rollback_target import RollbackTarget


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The flags of ``up``, ``upgrade``, ``rollback`` and ``restart``.

    Attributes:
        timeout_s: overrides the playbook's readiness limit.
        replace: whether to replace what serves another plan, has drifted, or does not answer as it should.
        rollback: whether to go back where a switch fails.
        yes: accept without asking what a kept release can do, and an image that is copied to nodes.
        min_speed: the least speed of a new release, as a share of the one before; 0 compares nothing.
        wait_s: how long to wait for the lease.
        order: groups that are switched first.
        max_unavailable: how many groups are switched at once, after the first one.
        pause_s: between groups that are switched.
    """

    timeout_s: float | None = None
    clear_caches: bool = False
    replace: bool = False
    rollback: bool = True
    yes: bool = False
    min_speed: float = 0
    wait_s: float = 0
    order: tuple[str, ...] = ()
    max_unavailable: int = 1
    pause_s: float = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Desired:
    """What is to serve.

    Attributes:
        release: the recorded release that ``spec`` is of, where one is to serve again: its groups start with the
            secrets that the nodes have of it, and whatever checks find.
        only: the groups that are looked at; None for all.
    """

    spec: Spec
    options: Options
    operation: Operation = "up"
    release: RollbackTarget | None = None
    only: Collection[str] | None = None

    def restarts(self, release: int) -> bool:
        """Whether a group that runs since ``release`` is started anew though it serves as it should."""
        return self.operation == "restart" and self.release is not None and release <= self.release.number
