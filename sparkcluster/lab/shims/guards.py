"""The programs of enabled clusters, started at boot and after a failure, as their systemd units would have it."""

from __future__ import annotations

import glob
import os
import pwd
import signal
import subprocess
import sys
import time
from typing import Any

PROGRAMS = "%s/.local/state/sparkcluster/clusters/*/enabled/guard.py"
HOMES = ("/root", "/home/*")
LOG = "guard.log"
PAUSE_S = 1.0


class Guards:
    """Which programs this Spark's first process has started."""

    def __init__(self) -> None:
        # Objects, not numbers: subprocess itself waits for children whose object is gone, and their status with it.
        self._started: dict[str, tuple[Any, subprocess.Popen[bytes]]] = {}
        self._next = 0.0

    def look(self) -> None:
        """Start every program that is new, at most once a second."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PAUSE_S
        for program in (path for home in HOMES for path in glob.glob(PROGRAMS % home)):
            try:
                found = os.stat(program)
                file = (found.st_ino, found.st_mtime_ns)
                if program not in self._started or self._started[program][0] != file:
                    self._started[program] = file, start(program, found.st_uid)
            except OSError as error:
                sys.stderr.write("%s not started: %s\n" % (program, error))  # removed meanwhile, or a full disk

    def ended(self, pid: int, status: int) -> None:
        """Start a program again unless it ended well or by SIGTERM: who sent that starts it by installing it again."""
        if status not in (0, signal.SIGTERM):
            self._started = {path: each for path, each in self._started.items() if each[1].pid != pid}


def start(program: str, uid: int) -> subprocess.Popen[bytes]:
    """Start a program as the user who installed it, with its output in a log beside it."""
    user, directory = pwd.getpwuid(uid), os.path.dirname(program)
    with open(os.path.join(directory, LOG), "ab") as log:
        return subprocess.Popen(
            ["python3", "-I", program, directory],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=user.pw_dir,
            env=dict(os.environ, HOME=user.pw_dir, USER=user.pw_name),
            user=uid,
            group=user.pw_gid,
            extra_groups=os.getgrouplist(user.pw_name, user.pw_gid),
            start_new_session=True,
        )
