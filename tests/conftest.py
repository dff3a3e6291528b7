"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Let tests and their children receive Ctrl-C: a shell that starts a job in the background has it ignore SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
