"""Facts that both the probe and the survey before setup report of a machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from sparkcluster.facts.base import Fact, Few, Path, Sha256, Unread, Version, read
from sparkcluster.facts.network import Interface, is_own
from sparkcluster.node.shared import VIRTUAL_INTERFACES


class OsRelease(Fact):
    """``/etc/os-release``."""

    id: str
    version: Version


class Dgx(Fact):
    """``/etc/dgx-release`` without the serial number."""

    name: str
    platform: str | None = None
    ota_version: Version | None = None
    swbuild_version: Version | None = None


class Machine(Fact):
    """A machine as a login sees it.

    Attributes:
        machine: SHA-256 of /etc/machine-id, the same on all addresses of a machine; None if it could not be read.
        reached_at: its address in the SSH connection; None without SSH.
    """

    hostname: str
    user: str
    uid: int
    groups: Few[str]
    home: Path
    architecture: str
    kernel: str
    os: OsRelease | Unread
    dgx: Dgx | Unread
    interfaces: Few[Interface] | Unread
    hf_home: Path
    machine: Sha256 | None = None
    reached_at: str | None = None


def same_machine(one: Machine, other: Machine) -> bool:
    """Whether two reports are from one machine.

    Machines installed from the same image may share a machine ID, and their bridges a MAC address.
    """
    if one.machine is None or one.machine != other.machine:
        return False
    first, second = _macs(one), _macs(other)
    return bool(first & second) or not (first and second)


def doubles(reports: Mapping[str, Machine]) -> dict[str, str]:
    """Names whose machine already has an earlier name, with that name, in the order of ``reports``."""
    by_machine: dict[str | None, list[str]] = defaultdict(list)
    found = {}
    for name, report in reports.items():
        first = next((each for each in by_machine[report.machine] if same_machine(reports[each], report)), None)
        if first is None:
            by_machine[report.machine].append(name)
        else:
            found[name] = first
    return found


def _macs(report: Machine) -> set[str]:
    return {
        each.mac
        for each in read(report.interfaces) or ()
        if is_own(each.mac) and not each.name.startswith(VIRTUAL_INTERFACES)
    }
