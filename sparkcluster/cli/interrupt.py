"""Ctrl-C decides how a command ends, even where Python or a library drops the exception."""

from __future__ import annotations

import signal
import sys

TYPE_CHECKING = False  # as in main
if TYPE_CHECKING:
    from threading import Timer
    from types import FrameType
    from typing import Any, Self

_AGAIN_S = 0.02
_open: list[Interrupts] = []


def forget() -> None:
    """Take Ctrl-C as handled: it ended a part of the command, which goes on and has an exit code of its own."""
    for interrupts in _open:
        interrupts.seen = False


class Interrupts:
    """Remembers SIGINT while open, and raises KeyboardInterrupt again if it was dropped.

    Exceptions in finalizers, weakref callbacks and generators that are being collected go to ``sys.unraisablehook``
    and no further; imports run many of these. Native code may drop an exception without a trace: ``seen`` is then
    all that is left of it.
    """

    def __init__(self) -> None:
        self.seen = False
        self._again: Timer | None = None
        self._before: Any = None
        self._hook = sys.unraisablehook

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.seen = True
        raise KeyboardInterrupt

    def _on_unraisable(self, dropped: sys.UnraisableHookArgs) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            self._hook(dropped)
            return
        import threading

        self.seen = True
        # not now: this runs inside what dropped it
        main = threading.main_thread().ident or 0
        self._again = threading.Timer(_AGAIN_S, signal.pthread_kill, (main, signal.SIGINT))
        self._again.daemon = True
        self._again.start()

    def __enter__(self) -> Self:
        sys.unraisablehook = self._on_unraisable
        _open.append(self)
        # ignored, as in a shell's background jobs, stays ignored
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.default_int_handler
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Put back what was there before; again if that was interrupted."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if self._again is not None:
            self._again.cancel()
        sys.unraisablehook = self._hook
        if self in _open:
            _open.remove(self)
        # An interrupt inside of exec(), as in each dataclass, would end ``python -m`` by the signal; this forgets it.
        exec("")  # noqa: S102
