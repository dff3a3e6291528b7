"""Run a function on many hosts at once; every outcome is returned, not only the first failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from sparkcluster.errors import CommandTimeout, SparkclusterError
from sparkcluster.hosts.base import Closing, Host

T = TypeVar("T")
Argument = TypeVar("Argument")

_WAIT_S = 0.5


class Fleet(Closing):
    """The hosts of a cluster by their nodes' names; ``others`` are closed after them: jump hosts that they share."""

    def __init__(self, hosts: Mapping[str, Host], others: Iterable[Host] = ()) -> None:
        self.hosts: dict[str, Host] = dict(hosts)
        self._others = list(others)

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def joined(self, other: Fleet) -> Fleet:
        """This fleet with the nodes of ``other``; closing it closes both."""
        return Fleet({**self.hosts, **other.hosts}, [*self._others, *other._others])

    @property
    def names(self) -> list[str]:
        """The nodes' names in the inventory's order."""
        return list(self.hosts)

    def each(
        self, function: Callable[[Host], T], names: Iterable[str] | None = None, *, limit_s: float = 900
    ) -> dict[str, T | SparkclusterError]:
        """Call ``function`` for all nodes (or ``names``) at once; per node its result or its error.

        An exception that is no SparkclusterError is a bug and is raised once all have ended. A node that has not
        ended after ``limit_s`` seconds counts as CommandTimeout; its thread goes on until its own time-outs.
        """
        return self.start(function, names).wait(limit_s)

    def start(self, function: Callable[[Host], T], names: Iterable[str] | None = None) -> Calls[T]:
        """Start what ``each`` does without waiting; ``wait`` of the return value ends it."""
        chosen = self.names if names is None else list(names)
        return Calls(function, {name: self.hosts[name] for name in chosen})

    def close(self) -> None:
        """Close all hosts at once. Never raises."""
        self.each(lambda host: host.close(), limit_s=2)
        for host in self._others:
            host.close()


class Calls(Generic[T]):
    """One function running for many nodes, each in a thread of its own."""

    def __init__(self, function: Callable[[Argument], T], arguments: Mapping[str, Argument]) -> None:
        self._outcomes: dict[str, T | BaseException] = {}
        # No Thread.join: after Ctrl-C in it, Python 3.11 takes a thread that runs for one that ended.
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
        """Per node the result of the function or its error, once all have ended.

        Any other exception, SystemExit included, is raised here, with the errors as its notes. A node that has not
        ended ``limit_s`` seconds from now counts as CommandTimeout.
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
        """Whether all have ended, at the latest ``limit_s`` seconds from now."""
        deadline = time.monotonic() + limit_s
        for event in self._ended.values():
            # In short waits: Ctrl-C ends a wait, but Python notes one that comes just before a wait begins after it.
            while not event.wait(max(0.0, min(_WAIT_S, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    return False
        return True

    def pending(self) -> list[str]:
        """Names of the calls that have not ended."""
        return [name for name, event in self._ended.items() if not event.is_set()]


def values(outcomes: Mapping[str, T | SparkclusterError]) -> dict[str, T]:
    """The results, of the nodes that did not fail."""
    return {name: outcome for name, outcome in outcomes.items() if not isinstance(outcome, SparkclusterError)}


def all_values(outcomes: Mapping[str, T | SparkclusterError], first: type[SparkclusterError]) -> dict[str, T]:
    """The results of all nodes; raises where a node failed, an error of class ``first`` before any other."""
    errors = list(failures(outcomes).values())
    if errors:
        raise next((error for error in errors if isinstance(error, first)), errors[0])
    return values(outcomes)


def failures(outcomes: Mapping[str, T | SparkclusterError]) -> dict[str, SparkclusterError]:
    """The errors, of the nodes that failed."""
    return {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, SparkclusterError)}
