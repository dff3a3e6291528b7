"""What a machine reports before it is set up: what it is, what it is cabled to, and what ``setup`` changes of it."""

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
"""How the login becomes root: it is root; ``sudo -n`` works; sudo wants a password; there is no sudo.

A login that may not use sudo counts as ``password``: sudo tells only after it got one.
"""


class Neighbour(Fact):
    """A machine that answers on an interface.

    Attributes:
        interface: interface of the machine that reports it.
        mac: hardware address of the other end.
        address: its address there, IPv4 or IPv6 link-local.
    """

    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,15}$")]
    mac: Mac
    address: Address | None = None


class FileState(Fact):
    """A file that ``setup`` may write.

    Attributes:
        sha256: of its content; None where there is no file.
        mode: permissions, such as 0o600.
        text: content, where it is text in UTF-8.
        unread: why it is not known, mostly that only root may read it.
    """

    sha256: Sha256 | None = None
    mode: int | None = None
    owner: str | None = None
    text: Raw | None = None
    unread: str | None = None


class JournalEntry(Fact):
    """One change of ``setup``, as the node's journal has it.

    Attributes:
        number: position in the journal, from 1; names what was saved.
        root: whether root's journal has it, or that of the login.
        at: seconds since 1970 by the node's clock.
        operator: who ordered it, as user@machine.
        step: name of the step.
        kind: kind of the action, such as ``file`` or ``group``.
        target: what was changed, such as a path.
        before, after: its state; of a file the SHA-256, or ``absent``.
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
    """Everything that ``discover`` and ``setup`` read of one machine in one round trip.

    Attributes:
        neighbours: who answers on its QSFP ports.
        unaddressed: interfaces of QSFP ports that have a link, but neither an IPv4 nor an IPv6 address.
        host_keys: public host keys.
        ranks: names of running ranks of a cluster: containers, and processes below the default ``state_dir``.
        foreign: files at and below ``hf_home`` that root owns, where the login is not root.
        docker: whether Docker is installed.
        runtimes: names of the engine's runtimes; None where the login may not ask it.
        files: state of each requested path; ``~`` is expanded, and a pattern is replaced by what matches it, if
            anything does.
        packages: of the requested packages, or of those that match a requested pattern, those that are installed, with
            what dpkg is to do with them: ``install``, or ``hold`` if apt does not upgrade them.
        default_target: what systemd starts at boot, such as multi-user.target; default.target where nobody chose it.
        ntp: whether the clock is set to be synchronized.
        journal: what ``setup`` changed here and did not undo.
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
        """Whether it has the release file of DGX OS."""
        return not isinstance(self.dgx, Unread)

    def outside(self) -> tuple[ipaddress.IPv4Interface, ...]:
        """Its IPv4 addresses outside of the QSFP ports, that of the connection before others."""
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
