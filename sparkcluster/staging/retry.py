"""What staging does in a silence: it connects again, takes the lease again, and starts anew what was cut off."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sparkcluster.errors import CommandTimeout, HostError, HostLost, LeaseLost, SparkclusterError, StageError
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.retry import LIMIT_S, Patience, is_transient

T = TypeVar("T")

Alive = Callable[[], None]
Errors = Mapping[str, SparkclusterError]

RESUME = "run this again: it resumes where it stopped"
"""Hint for failures that have no better one."""

# How often the lease of a node is taken again in one copy: a machine that is suspended again and again makes no
# progress, nor does a node that refuses it each time.
LAPSES = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """The step that programs on nodes belong to, as ``stage weights``.

    Attributes:
        lease: the lease on a node, as requests have it.
        stopped: whether the step was stopped.
        hold: takes the lease of a node again where it lapsed in a silence; LeaseLost where another operator has it.
        patience_s: how long a silent node is tried again.
        tell: called with a node and what is waited for.
    """

    name: str
    lease: Callable[[str], dict[str, Any]]
    stopped: Callable[[], bool]
    hold: Callable[[str], None] | None = None
    patience_s: float = LIMIT_S
    tell: Callable[[str, str], None] = lambda _node, _text: None


def until_done(step: Step, hosts: Sequence[Host], attempt: Callable[[Alive], T], *, then: str) -> T:
    """The result of ``attempt``, which is made again while one of ``hosts`` is silent; ``then`` says how it goes on.

    ``attempt`` gets a function to call with each sign of life. A program that is silent counts as a silent node. Where
    the lease lapsed meanwhile, it is taken again.

    Raises:
        HostError: a node was silent for the step's ``patience_s`` after the first error, or this is no silence.
        LeaseLost: another operator has the lease.
    """
    waiting = _Waiting(step, hosts, then)
    while True:
        try:
            waiting.hold()
            return attempt(waiting.restart)
        except LeaseLost as error:
            if not waiting.lapsed(error):
                raise
        except HostError as error:
            if not waiting.continues(error):
                raise
            waiting.connect(error)


class _Waiting:
    """What is waited for, since the last sign of life."""

    def __init__(self, step: Step, hosts: Sequence[Host], then: str) -> None:
        self._step, self._hosts, self._then = step, hosts, then
        self._patience = Patience(time.monotonic(), limit_s=step.patience_s)
        self._lapsed: str | None = None
        self._lapses: Counter[str] = Counter()
        self.restart()

    def restart(self) -> None:
        """Take in a sign of life."""
        self._heard = time.monotonic()
        self._patience.restart(self._heard)
        self._told = False

    def lapsed(self, error: LeaseLost) -> bool:
        """Whether the lease that a node says has lapsed is to be taken again, which is told, after a while."""
        node = error.node
        if self._step.hold is None or node is None or self._lapsed is not None or self._lapses[node] == LAPSES:
            return False
        self._lapses[node] += 1
        self._lapsed = node
        self._step.tell(node, f"the lease lapsed: taking it again; {self._then}")
        time.sleep(self._patience.pause_s())
        return True

    def hold(self) -> None:
        """Take the lease again where it has lapsed."""
        if self._lapsed is not None and self._step.hold is not None:
            self._step.hold(self._lapsed)
            self._lapsed = None

    def continues(self, error: HostError) -> bool:
        """Whether to try again after ``error``, which is told once."""
        now = time.monotonic()
        broke = HostLost(error.message, step=self._step.name) if isinstance(error, CommandTimeout) else error
        if not self._told:
            self._patience.restart(now)  # until then the node may have worked
        if self._step.stopped() or not self._patience.continues(broke, now):
            return False
        if not self._told:
            self._told = True
            node = error.node or self._hosts[0].name
            self._step.tell(node, f"{error.message}: connecting again; {self._then}")
        return True

    def connect(self, error: HostError) -> None:
        """Have the next command connect again, after a while: to every host, since it may be a jump host's failure."""
        time.sleep(self._patience.pause_s())
        before = self._heard if isinstance(error, CommandTimeout) else -math.inf
        for host in self._hosts:
            host.renew(before=before if error.node in (None, host.name) else -math.inf)


def is_silence(error: BaseException | None) -> bool:
    """Whether the network, the node, its sshd or a program on it did not answer."""
    return isinstance(error, CommandTimeout) or (error is not None and is_transient(error))


@contextlib.contextmanager
def stage_errors(step: Step, node: str) -> Iterator[None]:
    """Turn a lost connection into a StageError with node and step."""
    try:
        yield
    except HostError as error:
        raise StageError(
            f"{step.name} on {error.node or node}: {error.message}",
            node=error.node or node,
            step=step.name,
            hint=error.hint or RESUME,
        ) from error


def until_answered(
    step: Step, fleet: Fleet, nodes: Sequence[str], look: Callable[[], T], errors: Callable[[T], Errors]
) -> T:
    """What ``look`` finds once there are no ``errors`` of ``nodes`` in it.

    Raises:
        StageError: a node did not answer.
    """

    def attempt(_alive: Alive) -> T:
        began = time.monotonic()
        found = look()
        failed = errors(found)
        for node, error in failed.items():
            if isinstance(error, CommandTimeout):
                fleet[node].renew(before=began)
        if failed:
            raise min(failed.values(), key=is_silence)
        return found

    with stage_errors(step, nodes[0]):
        return until_done(step, [fleet[node] for node in nodes], attempt, then="its facts are collected again")
