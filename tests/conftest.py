"""What holds for all tests."""

from __future__ import annotations

import signal

import hypothesis

# A case on a busy machine takes as long as it takes; what is to be fast is measured in processor time.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_configure() -> None:
    """Let tests and their children receive Ctrl-C: a shell that starts a job in the background has it ignore SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
