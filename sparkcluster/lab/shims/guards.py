"""Starts the programs of enabled clusters at boot and after a failure, like their systemd units."""

from __future__ import annotations

import glob
import os
import pwd
import subprocess

PROGRAM = "/.local/state/sparkcluster/clusters/*/enabled/guard.py"
# Not restarted after SIGTERM: its sender installs the program again to start it. The shell's own command line has no
# path, so that killing guards by their path spares it.
RUN = 'until [ ! -e "$PWD/guard.py" ] || python3 -I "$PWD/guard.py" "$PWD" || [ $? = 143 ]; do sleep 1; done'


def look(started: dict[str, int]) -> None:
    """Start every program that is not in ``started`` or was reinstalled since, as the user who installed it.

    Its output goes to a log in its directory. OSError if it is removed meanwhile, or if the disk is full.
    """
    for program in glob.glob("/root" + PROGRAM) + glob.glob("/home/*" + PROGRAM):
        file, directory = os.stat(program), os.path.dirname(program)
        if started.get(program) == file.st_mtime_ns:
            continue
        as_owner = ["setsid", "su", "-s", "/bin/sh", pwd.getpwuid(file.st_uid).pw_name, "-c", RUN]
        with open(directory + "/guard.log", "ab") as log:
            subprocess.Popen(as_owner, cwd=directory, stdout=log, stderr=log)
        started[program] = file.st_mtime_ns
