"""The systemd unit of a guard: a system unit where this user may install one, else a user unit that lingers."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import sys
import time
from typing import Any

from sparkcluster.node import common
from sparkcluster.node.programs import Failed, run, succeeds
from sparkcluster.node.shared import ENABLED_DIR, GUARD_FILE

SYSTEM = "/etc/systemd/system"
BOOTED = "/run/systemd/system"
END_S = 20.0
_TEXT = """\
[Unit]
Description=sparkcluster: starts the ranks of {cluster} after a reboot, and restarts a dead group
After=docker.service network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
{user}ExecStart={command}
Restart=on-failure
RestartSec=10
KillMode=process

[Install]
WantedBy={target}
"""


def main(request: dict[str, Any], _lines: Any = None) -> dict[str, Any]:
    """End the guard of ``cluster``, which may hold the lease; its unit stays."""
    end(os.path.join(common.cluster_dir(request["state_dir"], request["cluster"]), ENABLED_DIR), request["unit"])
    return {}


def text(directory: str, cluster: str, user: str = "") -> str:
    """A system unit that runs as ``user``, or without one a user unit; its guard is in ``directory``."""
    target = "multi-user.target" if user else "default.target"
    return _TEXT.format(
        cluster=cluster, command=" ".join(map(_quoted, command(directory))), target=target,
        user="User=%s\n" % user if user else "",
    )  # fmt: skip


def command(directory: str) -> list[str]:
    """What starts the guard."""
    python = sys.executable if os.path.isabs(sys.executable or "") else "/usr/bin/python3"
    return [python, "-I", os.path.join(directory, GUARD_FILE), directory]


def install(directory: str, name: str) -> dict[str, Any]:
    """Install the unit ``name`` and start it: ``unit``, its path, or None without systemd, and the ``command`` it runs.

    Raises:
        Failed: systemd refuses it.
    """
    cluster = os.path.basename(os.path.dirname(directory))
    user = pwd.getpwuid(os.geteuid()).pw_name
    found: dict[str, Any] = {"unit": None, "command": command(directory)}
    as_root = root()
    content = text(directory, cluster, user if as_root is not None else "")
    common.write_atomically(os.path.join(directory, name), content.encode())
    if not os.path.isdir(BOOTED):
        return found
    if as_root is not None:
        remove_user(directory, name)
        path = os.path.join(SYSTEM, name)
        if os.path.exists(path) and not _is_of(path, directory):
            raise Failed("%s is of another cluster of this name" % path)
        run([*as_root, "install", "-m", "644", os.path.join(directory, name), path], 30)
        run([*as_root, "systemctl", "daemon-reload"], 60)
        run([*as_root, "systemctl", "enable", name], 60)
        run([*as_root, "systemctl", "restart", name], 60)
        return dict(found, unit=path)
    path = os.path.join(_user_units(), name)
    common.write_atomically(path, content.encode(), 0o644)
    for argv in (
        ["loginctl", "enable-linger", user],
        ["systemctl", "--user", "daemon-reload"],
        ["systemctl", "--user", "enable", name],
        ["systemctl", "--user", "restart", name],
    ):
        run(argv, 60, env=_user_environment())
    return dict(found, unit=path)


def end(directory: str, name: str) -> None:
    """End the guard of ``directory``, by its unit and by itself, and wait until it has ended.

    Raises:
        Failed: it does not end.
    """
    if os.path.isdir(BOOTED):
        as_root = root()
        if _is_of(os.path.join(SYSTEM, name), directory) and as_root is not None:
            run([*as_root, "systemctl", "stop", name], 60)
        if _is_of(os.path.join(_user_units(), name), directory):
            succeeds(["systemctl", "--user", "stop", name], 60, env=_user_environment())
    lock = os.path.join(directory, "guard.lock")
    until, number = time.monotonic() + END_S, signal.SIGTERM
    while common.is_locked(lock):
        with contextlib.suppress(OSError, ValueError), open(lock) as file:
            os.kill(int(file.read(20)), number)
        if time.monotonic() > until:
            raise Failed("the guard of %s does not end" % directory)
        if time.monotonic() > until - END_S / 2:
            number = signal.SIGKILL
        time.sleep(0.1)


def remove(directory: str, name: str) -> None:
    """Remove the unit ``name`` of the guard in ``directory``; a user's linger stays, for another may need it."""
    remove_user(directory, name)
    path = os.path.join(SYSTEM, name)
    if not _is_of(path, directory):
        return
    as_root = root()
    if as_root is None:
        raise Failed("%s cannot be removed: sudo asks for a password; sudo rm %s" % (path, path))
    if os.path.isdir(BOOTED):
        run([*as_root, "systemctl", "disable", name], 60)
    run([*as_root, "rm", "-f", path], 30)
    if os.path.isdir(BOOTED):
        run([*as_root, "systemctl", "daemon-reload"], 60)


def _is_of(path: str, directory: str) -> bool:
    """Whether the unit at ``path`` starts the guard in ``directory``: a cluster of this name may be another's."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return _quoted(directory) in file.read()
    except OSError:
        return False


def remove_user(directory: str, name: str) -> None:
    """Remove the user unit ``name`` of the guard in ``directory``, if there is one."""
    path = os.path.join(_user_units(), name)
    if _is_of(path, directory):
        if os.path.isdir(BOOTED):
            succeeds(["systemctl", "--user", "disable", "--now", name], 60, env=_user_environment())
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def root() -> Any:
    """What to put before a command that is to run as root: nothing for root, sudo where it asks nothing; else None."""
    if os.geteuid() == 0:
        return []
    return ["sudo", "-n"] if succeeds(["sudo", "-n", "true"], 10) else None


def _user_units() -> str:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(home, "systemd", "user")


def _user_environment() -> dict[str, str]:
    return dict(os.environ, XDG_RUNTIME_DIR=os.environ.get("XDG_RUNTIME_DIR") or "/run/user/%d" % os.geteuid())


def _quoted(word: str) -> str:
    """A word of ExecStart: in quotes, with what systemd expands escaped."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if escaped == word and not set(" '") & set(word) else '"%s"' % escaped
