"""The programs of enabled clusters, started at boot and after a failure, as their systemd units would have it."""

from __future__ import annotations

import glob
import os
import pwd
import signal
import subprocess

PROGRAM = "/.local/state/sparkcluster/clusters/*/enabled/guard.py"


class Guards:
    """Which programs this Spark's first process has started."""

    def __init__(self) -> None:
        # Objects, not numbers: subprocess itself waits for children whose object is gone, and their status with it.
        self._started: dict[str, tuple[int, subprocess.Popen[bytes]]] = {}

    def look(self) -> None:
        """Start every program that is new; OSError where one is removed meanwhile, or the disk is full."""
        for program in glob.glob("/root" + PROGRAM) + glob.glob("/home/*" + PROGRAM):
            file = os.stat(program)
            if program not in self._started or self._started[program][0] != file.st_mtime_ns:
                self._started[program] = file.st_mtime_ns, start(program, file.st_uid)

    def ended(self, pid: int, status: int) -> None:
        """Start a program again unless it ended well or by SIGTERM: who sent that starts it by installing it again."""
        if status not in (0, signal.SIGTERM):
            self._started = {path: each for path, each in self._started.items() if each[1].pid != pid}


def start(program: str, uid: int) -> subprocess.Popen[bytes]:
    """Start a program as the user who installed it, with its output in a log beside it."""
    user, directory = pwd.getpwuid(uid), os.path.dirname(program)
    with open(directory + "/guard.log", "ab") as log:
        return subprocess.Popen(
            ["python3", "-I", program, directory],
            stdout=log,
            stderr=log,
            env=dict(os.environ, HOME=user.pw_dir),
            user=uid,
            group=user.pw_gid,
            extra_groups=os.getgrouplist(user.pw_name, user.pw_gid),
            start_new_session=True,
        )
