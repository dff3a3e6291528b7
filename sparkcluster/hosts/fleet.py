"""Runs a function on many hosts at the same time and returns every outcome, not only the first failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from sparkcluster.errors import CommandTimeout, LeaseHeld, LeaseLost, RegistryAuth, SparkclusterError, UsageError
from sparkcluster.hosts.base import Closing, Host

T = TypeVar("T")
Argument = TypeVar("Argument")

_WAIT_S = 0.5
_FIRST = (UsageError, LeaseHeld, LeaseLost, RegistryAuth)


class Fleet(Closing):
    """The hosts of a cluster by node name; ``others`` are closed last: the jump hosts that they share."""

    def __init__(self, hosts: Mapping[str, Host], others: Iterable[Host] = ()) -> None:
        self.hosts: dict[str, Host] = dict(hosts)
        self._others = list(others)

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def joined(self, other: Fleet) -> Fleet:
        """This fleet plus the nodes of ``other``; closing it closes both."""
        return Fleet({**self.hosts, **other.hosts}, [*self._others, *other._others])

    @property
    def names(self) -> list[str]:
        """The node names, in the order of the inventory."""
        return list(self.hosts)

    def each(
        self, function: Callable[[Host], T], names: Iterable[str] | None = None, *, limit_s: float = 900
    ) -> dict[str, T | SparkclusterError]:
        """Call ``function`` for all nodes (or ``names``) at the same time; return each node's result or error.

        Any exception other than a SparkclusterError is a bug; it is raised once all calls have ended. A node that has
        not ended after ``limit_s`` seconds gets CommandTimeout; its thread runs on until its own time-outs.
        """
        return self.start(function, names).wait(limit_s)

    def start(self, function: Callable[[Host], T], names: Iterable[str] | None = None) -> Calls[T]:
        """Start ``each`` without waiting; call ``wait`` on the return value for the outcomes."""
        chosen = self.names if names is None else list(names)
        return Calls(function, {name: self.hosts[name] for name in chosen})

    def close(self) -> None:
        """Close all hosts at the same time. Never raises."""
        self.each(lambda host: host.close(), limit_s=2)
        for host in self._others:
            host.close()


class Calls(Generic[T]):
    """One function running for many nodes, each in its own thread."""

    def __init__(self, function: Callable[[Argument], T], arguments: Mapping[str, Argument]) -> None:
        self._outcomes: dict[str, T | BaseException] = {}
        # Thread.join is not used: after Ctrl-C in it, Python 3.11 takes a running thread for an ended one.
        self._ended = {name: threading.Event() for name in arguments}

        def run(name: str, argument: Argument) -> None:
            try:
                self._outcomes[name] = function(argument)
            except BaseException as error:  # noqa: BLE001 - raised again by wait()
                self._outcomes[name] = error
            finally:
                self._ended[name].set()

        for name, argument in arguments.items():
            threading.Thread(target=run, args=(name, argument), daemon=True, name=f"each {name}").start()

    def wait(self, limit_s: float) -> dict[str, T | SparkclusterError]:
        """Return each node's result or error, once all calls have ended.

        Any other exception, SystemExit included, is raised here with the errors as its notes. A node that has not ended
        within ``limit_s`` seconds gets CommandTimeout.
        """
        self.ended(limit_s)
        outcomes: dict[str, T | SparkclusterError] = {}
        defects: list[BaseException] = []
        for name in self._ended:
            late = CommandTimeout(f"{name} did not end within {limit_s:g} s", node=name, step="wait")
            outcome = self._outcomes.get(name, late)
            if isinstance(outcome, BaseException) and not isinstance(outcome, SparkclusterError):
                defects.append(outcome)
            else:
                outcomes[name] = outcome
        for defect in defects:
            for error in failures(outcomes).values():
                defect.add_note(str(error))
            raise defect
        return outcomes

    def ended(self, limit_s: float) -> bool:
        """Wait at most ``limit_s`` seconds; return whether all calls have ended."""
        deadline = time.monotonic() + limit_s
        for event in self._ended.values():
            # Short waits: Ctrl-C interrupts a wait, but Python handles one that comes just before a wait only after it.
            while not event.wait(max(0.0, min(_WAIT_S, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    return False
        return True

    def pending(self) -> list[str]:
        """Names of the calls that have not ended."""
        return [name for name, event in self._ended.items() if not event.is_set()]


def values(outcomes: Mapping[str, T | SparkclusterError]) -> dict[str, T]:
    """The results of the nodes that did not fail."""
    return {name: outcome for name, outcome in outcomes.items() if not isinstance(outcome, SparkclusterError)}


def all_values(outcomes: Mapping[str, T | SparkclusterError]) -> dict[str, T]:
    """The results of all nodes; if nodes failed, raise their ``combined`` errors."""
    if errors := failures(outcomes):
        raise combined(errors.values())
    return values(outcomes)


def combined(errors: Iterable[SparkclusterError]) -> SparkclusterError:
    """The error to raise for ``errors`` of one step; the others, and their own ``others``, are attached.

    Errors that callers handle separately come first: wrong usage, a lease that is held or lost, a registry's login.
    """
    errors = [each for error in errors for each in (error, *error.others)]
    chosen = next((error for kind in _FIRST for error in errors if isinstance(error, kind)), errors[0])
    for each in errors:
        each.others = tuple(other for other in errors if other is not chosen) if each is chosen else ()
    return chosen


def failures(outcomes: Mapping[str, T | SparkclusterError]) -> dict[str, SparkclusterError]:
    """The errors of the nodes that failed."""
    return {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, SparkclusterError)}
