"""Whether a node that fell silent is tried again, and when. Pure; time is passed in."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sparkcluster.errors import HostError, HostLost, HostRefused, HostTimeout, HostUnknown
from sparkcluster.hosts.base import Host

T = TypeVar("T")

LIMIT_S = 120.0
# A listener that is restarted is back in a second; a machine that boots needs longer, and its ranks are gone.
REFUSED_S = 30.0
_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 5.0)


def is_transient(error: BaseException) -> bool:
    """Whether the same command may succeed later: the network, the node or its sshd did not answer.

    A key that is not accepted, a changed host key and a command that failed are answers.
    """
    return isinstance(error, HostLost | HostTimeout | HostRefused | HostUnknown)


class Patience:
    """How long a silent node is tried again: ``limit_s`` from the last sign of life at the monotonic time ``now``.

    A node whose port is closed is given up after ``REFUSED_S``: it answers, and says that no sshd runs there.
    """

    def __init__(self, now: float, *, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self.restart(now)

    def restart(self, now: float) -> None:
        """Take in a sign of life."""
        self._since = now
        self._refused_since: float | None = None
        self._attempts = 0

    def continues(self, error: BaseException, now: float) -> bool:
        """Whether to try again after ``error``."""
        # "no route to host" and what a jump host says are a HostRefused as well, and no answer of the node
        if not isinstance(error.__cause__, ConnectionRefusedError):
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = now
        refused = self._refused_since is not None and now - self._refused_since >= REFUSED_S
        return is_transient(error) and not refused and now - self._since < self._limit_s

    def pause_s(self) -> float:
        """Seconds until the next attempt."""
        self._attempts += 1
        return _PAUSES_S[min(self._attempts, len(_PAUSES_S)) - 1]


def until_reached(
    host: Host, task: Callable[[], T], *, limit_s: float = LIMIT_S, tell: Callable[[str], None] | None = None
) -> T:
    """The result of ``task``, which is repeated while ``host`` is silent; it must have the same effect twice.

    The limit counts from the first error: until then the node may have worked on the task.
    ``tell`` is called once, with the first error, where the node is tried again.
    """
    patience: Patience | None = None
    while True:
        try:
            return task()
        except HostError as error:
            patience = patience or Patience(time.monotonic(), limit_s=limit_s)
            if not patience.continues(error, time.monotonic()):
                raise
            if tell is not None:
                tell(f"{error.message}: trying again for up to {limit_s:.0f} s")
                tell = None
        time.sleep(patience.pause_s())
        host.renew()
