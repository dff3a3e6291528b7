"""Makes Ctrl-C end a command reliably, even where Python or a library drops the exception."""

from __future__ import annotations

import signal
import sys

_RETRY_S = 0.02
_hook = sys.unraisablehook
_seen = False


def forget() -> bool:
    """Treat Ctrl-C as handled: it ended only a part of the command; returns whether there was one."""
    global _seen
    signal.setitimer(signal.ITIMER_REAL, 0)
    was, _seen = _seen, False
    return was


def install() -> None:
    """Remember SIGINT from now on, and raise KeyboardInterrupt again if it was dropped.

    Exceptions in finalizers, weakref callbacks and generators that are being collected end in
    ``sys.unraisablehook``; imports run many of these. Native code may drop an exception without a trace, so the
    signal is also remembered.
    """
    forget()
    # If SIGINT is ignored, as in a shell's background jobs, it stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGALRM, _on_signal)
        signal.signal(signal.SIGINT, _on_signal)
        sys.unraisablehook = _on_unraisable


def _on_signal(*_: object) -> None:
    global _seen  # noqa: PLW0603 - there is one Ctrl-C
    _seen = True
    raise KeyboardInterrupt


def _on_unraisable(dropped: sys.UnraisableHookArgs) -> None:
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)  # later: this runs inside the code that dropped it
    else:
        _hook(dropped)
