"""The systemd unit of a guard: a user unit with lingering, which needs no root and starts before any login."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import sys
import time
from typing import Any, BinaryIO

from sparkcluster.node import common
from sparkcluster.node.programs import Failed, run
from sparkcluster.node.shared import ENABLED_DIR, GUARD_FILE

BOOTED = "/run/systemd/system"
LOCK_FILE = "guard.lock"
END_S = 20.0
_TEXT = """\
[Unit]
Description=%%N: starts ranks after a reboot, and restarts a dead group
StartLimitIntervalSec=0

[Service]
ExecStart=%s
Restart=on-failure
RestartSec=10
KillMode=process

[Install]
WantedBy=default.target
"""


def main(request: dict[str, Any], _lines: Any = None) -> dict[str, Any]:
    """End the guard of ``cluster``, which may hold the lease; keep its unit."""
    end(os.path.join(common.cluster_dir(request["state_dir"], request["cluster"]), ENABLED_DIR))
    return {}


def text(directory: str) -> str:
    """Text of the unit for the guard in ``directory``."""
    return _TEXT % " ".join(map(_quoted, command(directory)))


def command(directory: str) -> list[str]:
    """The command of the guard."""
    return [sys.executable, "-I", os.path.join(directory, GUARD_FILE), directory]


def install(directory: str) -> dict[str, Any]:
    """Install and start the unit; return ``unit``, its path (None without systemd), and its ``command``.

    Raises:
        Failed: systemd failed.
    """
    if not os.path.isdir(BOOTED):
        return {"unit": None, "command": command(directory)}
    path = _path(directory)
    common.write_atomically(path, text(directory).encode())
    _run("loginctl", "enable-linger", pwd.getpwuid(os.geteuid()).pw_name)
    for words in (["daemon-reload"], ["enable", os.path.basename(path)], ["restart", os.path.basename(path)]):
        _run("systemctl", "--user", *words)
    return {"unit": path, "command": command(directory)}


def lock_guard(directory: str) -> BinaryIO:
    """The lock of the running guard of ``directory``, with its PID; exits if a guard is already running."""
    lock = common.try_lock(os.path.join(directory, LOCK_FILE))
    if lock is None:
        sys.exit("the guard of %s is already running" % directory)
    lock.truncate()
    lock.write(b"%d\n" % os.getpid())
    lock.flush()
    return lock


def end(directory: str) -> None:
    """End the guard of ``directory`` and wait for its exit; systemd does not restart it after SIGTERM.

    Raises:
        Failed: it does not end.
    """
    lock, until = os.path.join(directory, LOCK_FILE), time.monotonic() + END_S
    while common.is_locked(lock):
        with contextlib.suppress(OSError, ValueError), open(lock) as file:
            os.kill(int(file.read()), signal.SIGTERM)
        if time.monotonic() > until:
            raise Failed("the guard of %s does not end" % directory)
        time.sleep(0.1)


def remove(directory: str) -> None:
    """Remove the unit of the guard in ``directory``. Lingering stays enabled: other programs may need it."""
    path = _path(directory)
    if os.path.exists(path):
        with contextlib.suppress(Failed):  # systemd is not running
            _run("systemctl", "--user", "disable", "--now", os.path.basename(path))
        os.unlink(path)


def _run(*argv: str) -> None:
    # the socket of the user's systemd
    run(list(argv), 60, env=dict(os.environ, XDG_RUNTIME_DIR="/run/user/%d" % os.geteuid()))


def _path(directory: str) -> str:
    cluster = os.path.basename(os.path.dirname(directory))
    return os.path.expanduser("~/.config/systemd/user/sparkcluster-%s.service" % cluster)


def _quoted(word: str) -> str:
    """A word of ExecStart, with systemd's special characters escaped."""
    return '"%s"' % word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
