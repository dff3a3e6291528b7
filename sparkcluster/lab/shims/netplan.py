"""netplan: the real program reads and checks the files; ``ip`` applies them instead of NetworkManager."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

from . import hardware

FILE = "/etc/netplan/40-cx7.yaml"
"""The file with the addresses of the ConnectX-7 (NVIDIA's playbook connect-two-sparks)."""

PROGRAM = "/usr/sbin/netplan"
TO_JSON = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)"  # netplan.io needs python3-yaml
INVALID = 78  # netplan apply exits with EX_CONFIG if generate fails


def netplan(args: list[str]) -> int:
    """``apply`` configures the Spark's interfaces; commands that only read or write files run the real program."""
    if not os.access(PROGRAM, os.X_OK):
        return hardware.refuse("netplan: netplan.io is not installed on the machine of the lab")
    words = [arg for arg in args if not arg.startswith("-")]
    if words[:1] == ["apply"]:
        return apply() if hardware.is_root() else hardware.refuse("Permission denied")
    if words[:1] in (["try"], ["status"], ["rebind"], ["ip"]):
        return hardware.refuse("netplan: a virtual Spark does not support " + words[0])
    return _real(args)


def apply() -> int:
    """Configure all interfaces of the ConnectX-7 and the management network from the files; return the exit status."""
    if _real(["generate"]):
        return INVALID
    ethernets = merged()
    facts, live = hardware.load(), _live()
    lines: list[str] = []
    for name in [facts["management"], *(function["netdev"] for function in facts["functions"])]:
        entry = ethernets.get(name)
        if name in live:
            leased = name == facts["management"] and (entry is None or bool(entry.get("dhcp4")))
            lines += change(live[name], entry or {}, facts["address"] if leased else None, facts["gateway"])
            if facts["bare"] or entry is not None:
                _link_local_by_kernel(live[name], wanted="ipv6" in (entry or {}).get("link-local", ["ipv6"]))
    text = "".join(line + "\n" for line in lines)
    return subprocess.run(["/usr/sbin/ip", "-batch", "-"], input=text.encode(), check=False).returncode


def _real(args: list[str]) -> int:
    """Run the real program, then remove its units: their directory looks like a running systemd (sd_booted(3))."""
    done = subprocess.run([PROGRAM, *args], check=False)
    shutil.rmtree("/run/systemd/system", ignore_errors=True)
    return done.returncode


def merged() -> dict[str, Any]:
    """The interfaces in all files below /lib, /etc and /run, merged by netplan."""
    text = subprocess.run([PROGRAM, "get"], stdout=subprocess.PIPE, check=True).stdout
    done = subprocess.run(["/usr/bin/python3", "-c", TO_JSON], input=text, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = (json.loads(done.stdout.decode()) or {}).get("network", {}).get("ethernets") or {}
    return found


def change(link: dict[str, Any], entry: dict[str, Any], leased: str | None, gateway: str) -> list[str]:
    """Lines for ``ip -batch`` that change an interface to match its entry, skipping what already matches.

    ``leased`` is its DHCP address, if DHCP is used.
    """
    name = link["ifname"]
    wanted = [next(iter(each)) if isinstance(each, dict) else str(each) for each in entry.get("addresses", [])]
    if leased:
        wanted.append(leased)
    if "ipv4" in entry.get("link-local", []):
        high, low = (int(part, 16) for part in link["address"].split(":")[-2:])
        wanted.append("169.254.%d.%d/16" % (1 + high % 254, low))
    found = ["%s/%d" % (each["local"], each["prefixlen"]) for each in link["addr_info"] if each["scope"] != "link"]
    found += [
        "%s/%d" % (each["local"], each["prefixlen"])
        for each in link["addr_info"]
        if each["scope"] == "link" and each["family"] == "inet"
    ]
    lines = []
    if set(found) - set(wanted):
        # An interface without an address also loses its routes, as with NetworkManager.
        lines += ["addr del %s dev %s" % (address, name) for address in reversed(found)]
        found = []
    for address in wanted:
        if address not in found:
            broadcast = "" if ":" in address else " brd +"
            lines.append("addr add %s%s dev %s" % (address, broadcast, name))
    mtu = entry.get("mtu", 1500)
    if link["mtu"] != mtu:
        lines.append("link set %s mtu %s" % (name, mtu))
    if "UP" not in link["flags"]:
        lines.append("link set %s up" % name)
    if "ipv6" not in entry.get("link-local", ["ipv6"]):
        own = [each for each in link["addr_info"] if each["family"] == "inet6" and each["scope"] == "link"]
        lines += ["addr del %s/%d dev %s" % (each["local"], each["prefixlen"], name) for each in own]
    if leased:
        lines.append("route replace default via %s dev %s" % (gateway, name))
    return lines


def _live() -> dict[str, Any]:
    text = subprocess.run(["/usr/sbin/ip", "-j", "addr"], stdout=subprocess.PIPE, check=True).stdout
    return {each["ifname"]: each for each in json.loads(text.decode() or "[]") if each.get("ifname")}


def _link_local_by_kernel(link: dict[str, Any], *, wanted: bool) -> None:
    """Make the kernel assign an IPv6 link-local address (EUI-64) to the interface, or none."""
    name = link["ifname"]
    if "LOWER_UP" not in link["flags"]:
        # Writing the file would assign the address immediately, without a carrier.
        mode = "eui64" if wanted else "none"
        subprocess.run(["/usr/sbin/ip", "link", "set", name, "addrgenmode", mode], check=False)
        return
    with open("/proc/sys/net/ipv6/conf/%s/addr_gen_mode" % name, "w") as file:
        file.write("0\n" if wanted else "1\n")
