"""Machines that ``discover`` tries: from the inventory, from ``--host``, the local machine, and from mDNS."""

from __future__ import annotations

import dataclasses
import getpass
import re
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparkcluster.errors import UsageError
from sparkcluster.hosts.connect import Address, is_here
from sparkcluster.hosts.resolve import SshSettings, resolve
from sparkcluster.setup.discover import Target
from sparkcluster.setup.inventory_file import USER
from sparkcluster.spec.inventory import Inventory

if TYPE_CHECKING:
    from sparkcluster.setup.mdns import Candidate

RELEASE = Path("/etc/dgx-release")

# A name, an IPv4 address, or an IPv6 address with several colons.
_HOST = r"[0-9A-Za-z][0-9A-Za-z._-]{0,252}|[0-9A-Fa-f]*:[0-9A-Fa-f.]*:[0-9A-Fa-f.:]*(?:%[0-9A-Za-z._-]+)?"
_GIVEN = re.compile(rf"(?:(?P<user>[^@\s]+)@)?(?P<host>{_HOST})")


def login_name(text: str) -> str:
    """Return ``text`` if it is a valid login name.

    Raises:
        UsageError: it is not.
    """
    if USER.fullmatch(text) is None:
        raise UsageError(f"not a login name: {text[:60]!r}", hint="use the name that you type in ssh NAME@SPARK")
    return text


def of_inventory(inventory: Inventory) -> list[Target]:
    """Targets for the nodes of ``inventory``."""
    return [
        Target(
            node.label,
            Address(node.host, node.connection, SshSettings(**inventory.node_ssh(node).model_dump())),
            "inventory",
        )
        for node in inventory.nodes
    ]


def given(texts: Iterable[str], ssh: SshSettings, flag: str = "--host") -> list[Target]:
    """Targets for the values of ``flag``: name, address or user@host.

    Raises:
        UsageError: a value is none of these.
    """
    found: dict[str, Target] = {}
    for text in texts:
        match = _GIVEN.fullmatch(text)
        if match is None:
            named = ("192.168.1.11", "spark-1a2b.local", "nvidia@192.168.1.11")
            hint = f"{', '.join(f'{flag} {each}' for each in named)}; ports: ~/.ssh/config"
            raise UsageError(f"not a host: {text[:60]!r}", hint=hint)
        host = match["host"].rstrip(".")
        settings = dataclasses.replace(ssh, user=login_name(match["user"])) if match["user"] else ssh
        found.setdefault(host.lower(), Target(host, Address(host, ssh=settings), "--host"))
    return list(found.values())


def this_machine() -> list[Target]:
    """This machine, if it is a Spark."""
    if not RELEASE.exists():
        return []
    return [Target(socket.gethostname(), Address("localhost", "local"), "this machine")]


def announced(candidates: Iterable[Candidate], ssh: SshSettings) -> list[Target]:
    """Targets for mDNS candidates; host keys are confirmed, since any machine can announce itself."""
    ssh = dataclasses.replace(ssh, host_keys="reject")
    return [Target(each.name.removesuffix(".local"), Address(each.address, ssh=ssh), "mDNS") for each in candidates]


def joined(*parts: Sequence[Target]) -> list[Target]:
    """All ``parts`` with unique labels and without duplicate hosts."""
    found: dict[str, Target] = {}
    for target in (each for part in parts for each in part):
        if any(target.address.host.lower() == each.address.host.lower() for each in found.values()):
            continue
        label = target.label if target.label not in found else f"{target.label} ({target.address.host})"
        found.setdefault(label, dataclasses.replace(target, label=label))
    return list(found.values())


def without_login(targets: Iterable[Target]) -> list[str]:
    """Labels of ``targets`` without a login name, for which ssh_config falls back to the local user name.

    Raises:
        UsageError: ssh_config cannot be used.
    """
    found = []
    for target in targets:
        if target.address.ssh.user is None and target.address.connection != "local":
            resolved = resolve(target.address.host, target.address.ssh)
            if resolved.user == getpass.getuser() and not is_here(resolved):
                found.append(target.label)
    return found


def with_login(target: Target, user: str) -> Target:
    """``target`` with a login name."""
    ssh = dataclasses.replace(target.address.ssh, user=user)
    return dataclasses.replace(target, address=dataclasses.replace(target.address, ssh=ssh))
