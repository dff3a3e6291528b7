"""Facts of a machine before setup: hardware, cabling, and the state of everything that ``setup`` may change."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import Field

from sparkcluster.facts.base import Fact, Few, Raw, Sha256, Time, Unread
from sparkcluster.facts.machine import Machine
from sparkcluster.facts.network import Address, Device

Mac = Annotated[str, Field(pattern=r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")]
HostKey = Annotated[str, Field(pattern=r"^[a-z0-9@.-]+ ([A-Za-z0-9+/]{4})+([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")]
"""A public key as ``type base64``."""
Sudo = Literal["root", "free", "password", "absent"]
"""How the login becomes root: it is root; ``sudo -n`` works; sudo requires a password; there is no sudo.

A login without the right to use sudo counts as ``password``: sudo reports that only after the password.
"""


class Neighbour(Fact):
    """A machine that answers on an interface.

    Attributes:
        interface: interface of the reporting machine.
        mac: MAC address of the other end.
        address: address of the other end, IPv4 or IPv6 link-local.
    """

    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,15}$")]
    mac: Mac
    address: Address | None = None


class FileState(Fact):
    """A file that ``setup`` may write.

    Attributes:
        sha256: of the content; None if there is no file.
        mode: permissions, such as 0o600.
        text: the content, if it is UTF-8.
        unread: why the file could not be read; mostly because only root may.
    """

    sha256: Sha256 | None = None
    mode: int | None = None
    owner: str | None = None
    text: Raw | None = None
    unread: str | None = None


class JournalEntry(Fact):
    """A change by ``setup``, from the node's journal.

    Attributes:
        number: position in the journal, from 1; part of the names of saved files.
        root: whether it is in root's journal or in the login's.
        at: seconds since 1970 by the node's clock.
        operator: who ran the command, as user@machine.
        step: name of the step.
        kind: kind of the action, such as ``file`` or ``group``.
        target: the object that was changed, such as a path.
        before, after: its state; the SHA-256 of a file, or ``absent``.
    """

    number: Annotated[int, Field(ge=1)]
    root: bool = True
    at: Time
    operator: str
    step: str
    kind: str
    target: str
    before: str
    after: str


class Survey(Machine):
    """All facts that ``discover`` and ``setup`` read from a machine in one round trip.

    Attributes:
        neighbours: machines that answer on its QSFP ports.
        unaddressed: interfaces of QSFP ports that have a link, but neither an IPv4 nor an IPv6 address.
        host_keys: public host keys.
        ranks: names of running ranks of a cluster: containers, and processes below the default ``state_dir``.
        foreign: number of files in ``hf_home`` that root owns, if the login is not root.
        docker: whether Docker is installed.
        runtimes: names of Docker's runtimes; None if the login may not query Docker.
        files: state of each requested path; ``~`` is expanded, and a pattern is replaced by its matches, if any.
        packages: the installed packages among the requested names and patterns, with their dpkg selection: ``install``,
            or ``hold`` if apt must not upgrade them.
        default_target: systemd's boot target, such as multi-user.target; default.target if none was set.
        ntp: whether clock synchronization is enabled.
        journal: changes by ``setup`` that were not undone.
    """

    sudo: Sudo
    host_keys: Few[HostKey] = ()
    neighbours: Few[Neighbour] = ()
    unaddressed: Few[Device] = ()
    ranks: Few[str] = ()
    foreign: int = 0
    docker: bool = False
    runtimes: Few[str] | None = None
    files: dict[str, FileState] = Field(default_factory=dict)
    packages: dict[str, str] = Field(default_factory=dict)
    default_target: str | None = None
    ntp: bool = False
    journal: tuple[JournalEntry, ...] = ()

    @property
    def is_spark(self) -> bool:
        """Whether the release file of DGX OS exists."""
        return not isinstance(self.dgx, Unread)

    def outside(self) -> tuple[ipaddress.IPv4Interface, ...]:
        """IPv4 addresses of interfaces other than the QSFP ports; the address of the connection first."""
        found = [
            address
            for each in (() if isinstance(self.interfaces, Unread) else self.interfaces)
            if each.driver != "mlx5_core" and each.carrier and not each.name.startswith(("docker", "br-", "virbr"))
            for address in each.ipv4()
            if not address.is_loopback
        ]
        return tuple(sorted(found, key=lambda address: str(address.ip) != self.reached_at))

    def management(self) -> ipaddress.IPv4Interface | None:
        """The first address of ``outside``."""
        return next(iter(self.outside()), None)
