"""Settings for all tests."""

from __future__ import annotations

import signal

import hypothesis

# No deadline, since the machine may be busy; tests of speed measure CPU time.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_configure() -> None:
    """Let tests and their children receive Ctrl-C and SIGHUP.

    Background jobs of a shell ignore SIGINT, and nohup ignores SIGHUP; a shell script cannot trap signals that were
    ignored when it started.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # Children do not inherit a handler, which keeps the tests alive.
        signal.signal(signal.SIGHUP, lambda *_: None)
