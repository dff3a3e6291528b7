"""Every shim is a link to one program, which runs the function with the link's name."""

from __future__ import annotations

import importlib
import os
import sys

TOOLS = {
    "nvidia-smi": "gpu",
    "nvidia-container-runtime-hook": "gpu",
    "fit_container": "runtime",
    "show_gids": "sysfs",
    "ib_write_bw": "bandwidth",
    "systemctl": "services",
    "loginctl": "services",
    "nvidia-ctk": "services",
    "ufw": "services",
    "netplan": "netplan",
    "timedatectl": "settings",
    "apt-get": "packages",
    "apt-mark": "packages",
    "dpkg": "packages",
    "dpkg-query": "packages",
    "dmesg": "logs",
    "journalctl": "logs",
    "modinfo": "logs",
}
"""Module of each shim in this package."""

INTERNAL = ("nvidia-container-runtime-hook", "fit_container")
"""Shims that only Docker calls; not on PATH."""

PACKAGED = ("ib_write_bw",)
"""Shims that are on PATH only if their package is installed."""


def main() -> int:
    """Run the tool with the name of this process; return its exit status."""
    name = os.path.basename(sys.argv[0])
    if name == "init":
        from . import init

        init.main()
        return 0
    if name == "sync":
        from . import sysfs

        sysfs.sync()
        return 0
    module = importlib.import_module("." + TOOLS[name], __package__)
    try:
        return int(getattr(module, name.replace("-", "_"))(sys.argv[1:]) or 0)
    except BrokenPipeError:
        return 141
