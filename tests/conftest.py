"""What holds for all tests."""

from __future__ import annotations

import signal

import hypothesis

# A case on a busy machine takes as long as it takes; what is to be fast is measured in processor time.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_configure() -> None:
    """Let tests and their children receive Ctrl-C and SIGHUP.

    A shell that starts a job in the background has it ignore SIGINT, and nohup has it ignore SIGHUP; a program cannot
    trap what was ignored when it began.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # A handler is none to a child, and keeps the tests themselves alive.
        signal.signal(signal.SIGHUP, lambda *_: None)
