"""Which of several names mean one machine, by what it reports of itself. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.network import Interface
from sparkcluster.node.shared import VIRTUAL_INTERFACES

_MAC = re.compile(r"[0-9a-f][02468ace](:[0-9a-f]{2}){5}", re.ASCII)  # of one interface, not of a group
_NO_MAC = "00:00:00:00:00:00"


class Identified(Protocol):
    """What a machine reports of itself: SHA-256 of its /etc/machine-id, None where unknown, and its interfaces."""

    @property
    def machine(self) -> str | None:
        """SHA-256 of /etc/machine-id."""

    @property
    def interfaces(self) -> tuple[Interface, ...] | Unread:
        """Its interfaces, with their hardware addresses."""


def is_own(mac: str) -> bool:
    """Whether this is the hardware address of one interface, not of a group nor of none."""
    return _MAC.fullmatch(mac) is not None and mac != _NO_MAC


def same_machine(one: Identified, other: Identified) -> bool:
    """Whether two reports are of one machine.

    Machines that were installed from one image may share a machine ID, and their bridges a hardware address.
    """
    if one.machine is None or one.machine != other.machine:
        return False
    first, second = _macs(one), _macs(other)
    return bool(first & second) or not (first and second)


def doubles(reports: Mapping[str, Identified]) -> dict[str, str]:
    """Names whose machine has another name before, each with that, in the order of ``reports``."""
    by_machine: dict[str | None, list[str]] = defaultdict(list)
    found = {}
    for name, report in reports.items():
        first = next((each for each in by_machine[report.machine] if same_machine(reports[each], report)), None)
        if first is None:
            by_machine[report.machine].append(name)
        else:
            found[name] = first
    return found


def _macs(report: Identified) -> set[str]:
    return {
        each.mac
        for each in read(report.interfaces) or ()
        if is_own(each.mac) and not each.name.startswith(VIRTUAL_INTERFACES)
    }
