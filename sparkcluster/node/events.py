"""``on_event`` of the inventory: a command that the head's guard runs as the node's user after an event."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any

LIMIT_S = 60.0
# Variables of the guard's environment for the command; others may hold secrets.
PASSED = ("PATH", "HOME", "LANG", "USER", "TMPDIR")
_EVENTS = {"gave up": "gave-up", "victim": "victim", "load failed": "load-failed"}


def tell(config: dict[str, Any], entry: dict[str, Any], failed: Callable[[str], None]) -> None:
    """Run ``on_event`` of the guard's ``config``, if it is set and the journal ``entry`` is an event.

    It runs in the background, for ``LIMIT_S`` at most; ``failed`` gets the reason if it failed.
    """
    event = _EVENTS.get(entry["act"])
    if entry["act"] == "restart":
        event = "wedge" if entry["wedged"] else "dead"
    if event and config.get("on_event"):
        found = {"event": event, "cluster": config["cluster"], "text": " ".join(entry["why"].split())}
        found.update(group=entry["group"], node=entry["node"])
        environment = {name: os.environ[name] for name in PASSED if name in os.environ}
        environment.update(("SPARKCLUSTER_" + name.upper(), str(value)) for name, value in found.items())
        try:
            threading.Thread(target=_run, args=(config["on_event"], environment, failed), daemon=True).start()
        except RuntimeError as error:  # no more threads: the guard must continue
            _failed(config["on_event"], "it could not be started: %s" % error, failed)


def _run(words: list[str], environment: dict[str, str], failed: Callable[[str], None]) -> None:
    why = None
    try:
        # its output goes to the guard's log
        process = subprocess.Popen(
            words, env=environment, cwd=os.path.expanduser("~"), stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            code = process.wait(LIMIT_S)
            why = "it exited with code %d" % code if code else None
        except subprocess.TimeoutExpired:
            why = "it took longer than %.0f s" % LIMIT_S
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    except (OSError, ValueError) as error:
        why = "it could not be started: %s" % error
    if why:
        _failed(words, why, failed)


def _failed(words: list[str], why: str, failed: Callable[[str], None]) -> None:
    with contextlib.suppress(OSError):  # the disk is full
        failed("%s: %s" % (words[0], why))
