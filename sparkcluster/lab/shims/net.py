"""ethtool and uname: the real programs, except for what is specific to a Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from . import hardware


def ethtool(args: list[str]) -> int:
    """``ethtool IF`` and ``ethtool -i IF`` of the Spark's interfaces; everything else goes to the real program."""
    live = hardware.links()
    facts = hardware.load()
    functions = {function["netdev"]: function for function in facts["functions"]}
    name = args[-1] if args else ""
    if name in live and (name in functions or name == facts["management"]):
        if len(args) == 1:
            sys.stdout.write(_link(name, functions.get(name), live[name]))
            if not hardware.is_root():
                hardware.refuse("netlink error: Operation not permitted")
            return 0
        if args[0] in ("-i", "--driver"):
            sys.stdout.write(_driver(facts, functions.get(name)))
            return 0
    os.execv("/usr/sbin/ethtool", ["ethtool", *args])
    return 127


def _link(name: str, function: dict[str, Any] | None, link: dict[str, Any]) -> str:
    speed = function["speed_mbps"] if function else 10000
    port = "Direct Attach Copper" if function else "Twisted Pair"
    return (
        "Settings for %s:\n"
        "\tSupported ports: [ %s ]\n"
        "\tSpeed: %s\n"
        "\tDuplex: %s\n"
        "\tAuto-negotiation: on\n"
        "\tPort: %s\n"
        "\tLink detected: %s\n"
        % (
            name,
            "Backplane" if function else "TP",
            "%dMb/s" % speed if link["up"] else "Unknown!",
            "Full" if link["up"] else "Unknown! (255)",
            port,
            "yes" if link["up"] else "no",
        )
    )


def _driver(facts: dict[str, Any], function: dict[str, Any] | None) -> str:
    firmware = "%s (%s)" % (facts["firmware"], hardware.BOARD) if function else ""
    return (
        "driver: %s\nversion: %s\nfirmware-version: %s\nexpansion-rom-version: \nbus-info: %s\n"
        "supports-statistics: yes\nsupports-test: yes\nsupports-eeprom-access: no\n"
        "supports-register-dump: no\nsupports-priv-flags: yes\n"
        % (
            "mlx5_core" if function else "r8127",
            facts["kernel"],
            firmware,
            function["pci"] if function else "0007:01:00.0",
        )
    )


def uname(args: list[str]) -> int:
    """The real uname, with the Spark's kernel release in place of the machine's."""
    done = subprocess.run(["/usr/bin/uname", *args], stdout=subprocess.PIPE, check=False)
    real = os.uname()
    text = done.stdout.decode().replace(real.release, hardware.load()["kernel"])
    sys.stdout.write(text)
    return done.returncode
