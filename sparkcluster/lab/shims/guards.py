"""The programs of enabled clusters, started at boot and after a failure, as their systemd units would have it."""

from __future__ import annotations

import glob
import os
import pwd
import subprocess

PROGRAM = "/.local/state/sparkcluster/clusters/*/enabled/guard.py"
# Not again after SIGTERM: who sent that starts it by installing it again. The shell's own command has no path, so that
# what kills guards by theirs spares it.
RUN = 'until [ ! -e "$PWD/guard.py" ] || python3 -I "$PWD/guard.py" "$PWD" || [ $? = 143 ]; do sleep 1; done'


def look(started: dict[str, int]) -> None:
    """Start every program that is not in ``started``, or was installed again since, as the user who installed it.

    Its output is in a log beside it. OSError where one goes away meanwhile, or the disk is full.
    """
    for program in glob.glob("/root" + PROGRAM) + glob.glob("/home/*" + PROGRAM):
        file, directory = os.stat(program), os.path.dirname(program)
        if started.get(program) == file.st_mtime_ns:
            continue
        as_owner = ["setsid", "su", "-s", "/bin/sh", pwd.getpwuid(file.st_uid).pw_name, "-c", RUN]
        with open(directory + "/guard.log", "ab") as log:
            subprocess.Popen(as_owner, cwd=directory, stdout=log, stderr=log)
        started[program] = file.st_mtime_ns
