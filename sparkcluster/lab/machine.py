"""Requirements of the lab on its machine: Linux, root and a few programs."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sparkcluster.errors import LabError, UsageError

DEBIAN_PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setsid": "util-linux",
    "mount": "mount",
    "mkfs.ext4": "e2fsprogs",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "dockerd": "docker.io",
    "docker": "docker.io",
    "iperf3": "iperf3",
    "pkill": "procps",
    "rsync": "rsync",
    "python3": "python3-minimal",
}
"""Debian package of every program that a lab needs, on the machine or on a virtual Spark."""

BARE_PACKAGES = {
    "sudo": "sudo",
    "usermod": "passwd",
    "avahi-daemon": "avahi-daemon",
    "netplan": "netplan.io",
}
"""Additional packages for bare Sparks."""

SPARK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of a login on a virtual Spark; the shims in /usr/local/bin come before the real programs."""

TOOLS = "/usr/local/lib/gb10"
"""Directory of the shims on a virtual Spark."""

SPARK_USER = 1000
"""User and group ID of the plain user ``spark`` on a virtual Spark."""

SYSTEM_DIRECTORIES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Directories for required programs: a virtual Spark hides the machine's /usr/local."""


def require(programs: Mapping[str, str] = DEBIAN_PACKAGES) -> None:
    """Raise an error, with the command that fixes it, if the machine cannot run a lab.

    Raises:
        UsageError: not Linux, not root, or programs are missing.
    """
    if sys.platform != "linux":
        raise UsageError(
            "the lab needs Linux: virtual Sparks use its namespaces",
            hint="run it in a Linux virtual machine",
        )
    missing = sorted({package for program, package in programs.items() if not _installed(program)})
    if missing:
        raise UsageError(
            f"the lab needs programs that are not installed: {' '.join(missing)}",
            hint=f"sudo apt-get install -y --no-install-recommends {' '.join(missing)}",
        )
    if os.geteuid() != 0:
        raise UsageError(
            "the lab needs root: it creates network and mount namespaces",
            hint=f"sudo {' '.join(sys.argv)}",
        )


def _installed(program: str) -> bool:
    return any(os.access(f"{directory}/{program}", os.X_OK) for directory in SYSTEM_DIRECTORIES)


def run(
    argv: Sequence[str],
    *,
    text_in: str | None = None,
    check: bool = True,
    timeout_s: float = 60.0,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program of the machine until it exits.

    Raises:
        LabError: it failed and ``check`` is set, exceeded its time limit, or is not installed.
    """
    try:
        done = subprocess.run(
            list(argv),
            input=text_in,
            stdin=subprocess.DEVNULL if text_in is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=env,
            check=False,
        )
    except FileNotFoundError as error:
        hint = f"sudo apt-get install -y {DEBIAN_PACKAGES.get(argv[0], argv[0])}"
        raise LabError(f"{argv[0]} is not installed", step=" ".join(argv), hint=hint) from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{argv[0]} took longer than {timeout_s:.0f} s", step=" ".join(argv)) from error
    if check and done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        raise LabError(f"{argv[0]} failed: {last[0]}", step=" ".join(argv))
    return done


def command_line(pid: int) -> list[str]:
    """Command line of a process, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def wait_until(
    true: Callable[[], bool], *, limit_s: float, sleep: Callable[[float], None] = time.sleep, step_s: float = 0.02
) -> bool:
    """Poll ``true`` for about ``limit_s`` seconds; return its last result."""
    for _ in range(max(1, int(limit_s / step_s))):
        if true():
            return True
        sleep(step_s)
    return true()


# From <linux/mount.h> and <linux/sched.h>; Python has no names for them before 3.12.
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
CLONE_NEWCGROUP = 0x02000000


def mount(source: str, target: Path | str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount a file system with the system call, so that a boot need not start thirty programs.

    Raises:
        OSError: the kernel refused, with the target in the message.
    """
    arguments = (source.encode(), os.fsencode(target), kind.encode() or None, ctypes.c_ulong(flags))
    _system_call("mount", *arguments, data.encode() or None, subject=f"mount {kind or source} on {target}")


def unshare(flags: int) -> None:
    """Leave a namespace with the system call, which Python offers only since 3.12.

    Raises:
        OSError: the kernel refused.
    """
    _system_call("unshare", ctypes.c_int(flags), subject="unshare")


def _system_call(name: str, *arguments: object, subject: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot {subject}: {os.strerror(code)}")
