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
    user, sudo = pwd.getpwuid(os.geteuid()).pw_name, root()
    source = os.path.join(directory, name)
    common.write_atomically(source, text(directory, cluster, "" if sudo is None else user).encode())
    if not os.path.isdir(BOOTED):
        return {"unit": None, "command": command(directory)}
    remove(directory, name)
    if sudo is None:
        sudo, path, systemctl = [], os.path.join(_user_units(), name), ["systemctl", "--user"]
        _run("loginctl", "enable-linger", user)
    else:
        path, systemctl = os.path.join(SYSTEM, name), [*sudo, "systemctl"]
    if os.path.exists(path):
        raise Failed("%s is of another cluster of this name" % path)
    _run(*sudo, "install", "-D", "-m", "644", source, path)
    _run(*systemctl, "daemon-reload")
    _run(*systemctl, "enable", name)
    _run(*systemctl, "restart", name)
    return {"unit": path, "command": command(directory)}


def end(directory: str, name: str) -> None:
    """End the guard of ``directory``, by its unit and by itself, and wait until it has ended.

    Raises:
        Failed: it does not end.
    """
    for _, sudo, systemctl in _installed(directory, name):
        _try(*(sudo or []), *systemctl, "stop", name)
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
    for path, sudo, systemctl in _installed(directory, name):
        if sudo is None:
            raise Failed("%s cannot be removed: sudo asks for a password; sudo rm %s" % (path, path))
        _try(*sudo, *systemctl, "disable", name)
        _run(*sudo, "rm", "-f", path)
        _try(*sudo, *systemctl, "daemon-reload")


def _installed(directory: str, name: str) -> list[tuple[str, list[str] | None, list[str]]]:
    """The units of the guard in ``directory``: path, ``root`` of those that need it, and their ``systemctl``."""
    system, user = os.path.join(SYSTEM, name), os.path.join(_user_units(), name)
    found: list[tuple[str, list[str] | None, list[str]]] = []
    if _is_of(system, directory):
        found.append((system, root(), ["systemctl"]))
    if _is_of(user, directory):
        found.append((user, [], ["systemctl", "--user"]))
    return found


def _run(*argv: str) -> None:
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR") or "/run/user/%d" % os.geteuid()  # where a user's systemd listens
    run(list(argv), 60, env=dict(os.environ, XDG_RUNTIME_DIR=runtime_dir))


def _try(*argv: str) -> None:
    """Ask systemd for what is of no use where it does not run, or the user's does not."""
    with contextlib.suppress(Failed):
        _run(*argv)


def _is_of(path: str, directory: str) -> bool:
    """Whether the unit at ``path`` starts the guard in ``directory``: a cluster of this name may be another's."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return _quoted(directory) in file.read()
    except OSError:
        return False


def root() -> list[str] | None:
    """What to put before a command that is to run as root: nothing for root, sudo where it asks nothing; else None."""
    if os.geteuid() == 0:
        return []
    return ["sudo", "-n"] if succeeds(["sudo", "-n", "true"], 10) else None


def _user_units() -> str:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(home, "systemd", "user")


def _quoted(word: str) -> str:
    """A word of ExecStart: in quotes, with what systemd expands escaped."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if escaped == word and not set(" '") & set(word) else '"%s"' % escaped
