"""Settings of a Spark that the machine's kernel and systemd cannot keep per Spark: vm.* sysctls, NTP."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

from . import hardware

VIRTUAL_MEMORY = {
    "swappiness": "60",
    "dirty_bytes": "0",
    "dirty_background_bytes": "0",
    "dirty_ratio": "20",
    "dirty_background_ratio": "10",
}
"""The vm.* sysctls that are simulated per Spark, with the kernel's defaults (mm/page-writeback.c, mm/vmscan.c)."""

FILES = hardware.DIRECTORY + "/vm"
"""Directory of the files that are mounted over /proc/sys/vm."""

PAIRS = (("dirty_bytes", "dirty_ratio"), ("dirty_background_bytes", "dirty_background_ratio"))

NTP = "/var/lib/gb10/ntp"
"""Whether the clock is synchronized, ``yes`` or ``no``."""


class VirtualMemory:
    """The vm.* sysctls: writing one of a pair sets the other to 0, as in the kernel."""

    def __init__(self) -> None:
        self._directory = os.open(FILES, os.O_RDONLY)
        self._before = self._values()

    def watch(self) -> None:
        """Make the kernel send SIGIO on every write; without CONFIG_DNOTIFY, pairs are not updated."""
        try:
            fcntl.fcntl(self._directory, fcntl.F_NOTIFY, fcntl.DN_MODIFY | fcntl.DN_MULTISHOT)
        except OSError as error:
            sys.stderr.write("sysctls not watched: %s\n" % error)

    def load(self) -> None:
        """Apply the simulated sysctls in /etc/sysctl.d, as at boot; others belong to the machine."""
        command = ["/usr/sbin/sysctl", "--quiet", "--system", "--pattern", "^vm[./](%s)$" % "|".join(VIRTUAL_MEMORY)]
        subprocess.run(command, check=False)
        self.update()

    def update(self) -> None:
        """Set the other of a pair to 0 after a write."""
        now = self._values()
        for pair in PAIRS:
            for written, other in (pair, pair[::-1]):
                if now[written] != self._before[written] and now[other] == self._before[other] != "0":
                    now[other] = "0"
                    with open(os.path.join(FILES, other), "w") as file:
                        file.write("0\n")
        self._before = now

    def _values(self) -> dict[str, str]:
        found = {}
        for name in VIRTUAL_MEMORY:
            with open(os.path.join(FILES, name)) as file:
                found[name] = file.read().strip()
        return found


def timedatectl(args: list[str]) -> int:
    """``show -p NTP`` and ``set-ntp BOOL``; the state is a file."""
    if args[:1] == ["set-ntp"] and not hardware.is_root():
        return hardware.refuse("Failed to set ntp: Interactive authentication required.")
    with open(NTP, "w" if args[:1] == ["set-ntp"] else "r") as file:
        if args[:1] == ["set-ntp"]:
            file.write("yes\n" if args[1] in ("1", "true", "yes", "on") else "no\n")
        else:
            sys.stdout.write("NTP=%s\n" % file.read().strip())
    return 0
