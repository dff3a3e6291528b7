"""What ``setup`` changes on a node: each action as lines of sh that call a function of ``sh/``, which also undoes it.

The functions write the journal: a line for each change before it is made, and the file as it was. Its kinds:

========== ======================= =============================== ====================
kind       target                  before                          after
========== ======================= =============================== ====================
file       path                    SHA-256 or ``absent``           SHA-256
line       path                    likewise                        SHA-256
block      path                    SHA-256                         SHA-256
netplan    path                    SHA-256 or ``absent``           SHA-256
directory  path                    ``absent``                      ``made``
group      ``GROUP:USER``          ``absent``                      ``member``
sysctl     name                    ``NAME=VALUE`` that restores it ``NAME=VALUE``
address    ``INTERFACE ADDRESS``   ``absent`` or ``present``       the other
link       interface               ``mtu=N mode=N``                ``mtu=N``
owner      path                    SHA-256 of the list of owners   user
package    name                    ``absent``                      ``installed``
hold       package                 ``free``                        ``held``
target     ``default.target``      ``absent`` or a target          target
ntp        ``clock``               ``no``                          ``yes``
restart    ``docker``              ``due``                         ``done``
========== ======================= =============================== ====================

``restart`` is an entry only until Docker was restarted. ``mode`` is the kernel's addr_gen_mode.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sparkcluster.errors import SetupError
from sparkcluster.printable import hidden_at


class Action:
    """One change.

    Attributes:
        files: names of the files in ``sh/`` with what its lines call.
    """

    __slots__ = ()
    files: ClassVar[tuple[str, ...]]

    def lines(self) -> list[str]:
        """A command, and below it the here-document that it reads."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class WriteFile(Action):
    """Write a file of root's."""

    files = ("file", "write")
    path: str
    text: str
    mode: int = 0o644

    def lines(self) -> list[str]:
        """The command with the text."""
        return command("write_file", self.path, f"{self.mode:o}", text=self.text)


@dataclass(frozen=True, slots=True)
class AddKey(Action):
    """Add a public key to a user's authorized_keys."""

    files = ("file", "key")
    path: str
    line: str

    def lines(self) -> list[str]:
        """The command."""
        return command("add_key", self.path, self.line)


@dataclass(frozen=True, slots=True)
class HostsBlock(Action):
    """Write the block of ``setup`` in /etc/hosts; other lines stay."""

    files = ("file", "hosts")
    text: str

    def lines(self) -> list[str]:
        """The command with the lines of the block."""
        return command("set_hosts", text=self.text)


@dataclass(frozen=True, slots=True)
class JoinGroup(Action):
    """Add a user to a group."""

    files = ("group",)
    user: str
    group: str

    def lines(self) -> list[str]:
        """The command."""
        return command("join_group", self.user, self.group)


@dataclass(frozen=True, slots=True)
class SetSysctl(Action):
    """Set a kernel parameter until the next boot."""

    files = ("sysctl",)
    name: str
    value: str

    def lines(self) -> list[str]:
        """The command."""
        return command("set_sysctl", self.name, self.value)


@dataclass(frozen=True, slots=True)
class Netplan(Action):
    """Put a netplan file into effect; ``addresses`` by interface are those that it gives."""

    files = ("ranks", "file", "netplan")
    text: str
    addresses: Mapping[str, str]

    def lines(self) -> list[str]:
        """The command with the text."""
        return command("set_netplan", *(f"{name}={each}" for name, each in self.addresses.items()), text=self.text)


@dataclass(frozen=True, slots=True)
class Own(Action):
    """Give a directory and all below to a user."""

    files = ("owner",)
    path: str
    user: str

    def lines(self) -> list[str]:
        """The command."""
        return command("own_tree", self.path, self.user)


@dataclass(frozen=True, slots=True)
class Install(Action):
    """Install a Debian package."""

    files = ("package",)
    package: str

    def lines(self) -> list[str]:
        """The command."""
        return command("install_package", self.package)


@dataclass(frozen=True, slots=True)
class SetNtp(Action):
    """Have the clock synchronized."""

    files = ("ntp",)

    def lines(self) -> list[str]:
        """The command."""
        return command("set_ntp")


@dataclass(frozen=True, slots=True)
class SetDefaultTarget(Action):
    """What systemd starts at boot."""

    files = ("target",)
    target: str

    def lines(self) -> list[str]:
        """The command."""
        return command("set_target", self.target)


@dataclass(frozen=True, slots=True)
class Hold(Action):
    """Have apt leave packages at their version."""

    files = ("hold",)
    packages: Sequence[str]

    def lines(self) -> list[str]:
        """The command."""
        return command("hold", *self.packages)


@dataclass(frozen=True, slots=True)
class ConfigureRuntime(Action):
    """Add NVIDIA's runtime to Docker, and restart Docker."""

    files = ("ranks", "file", "runtime")

    def lines(self) -> list[str]:
        """The command."""
        return command("configure_runtime")


def command(function: str, *words: str, text: str | None = None, call: str = "act") -> list[str]:
    """Lines that call a function of ``sh/``.

    Args:
        function: its name.
        words: its arguments.
        text: what it reads, with a line end at its end.
        call: what calls it.

    Raises:
        SetupError: a word or the text has a control character.
    """
    for each in (*words, (text or "").replace("\n", "").replace("\t", "")):
        if hidden_at(each, "") is not None:
            raise SetupError(f"{each!r} has a hidden character", step="setup")
    first = " ".join((call, function, *map(shlex.quote, words)))
    if text is None:
        return [first]
    body = text.splitlines()
    end = "END"
    while end in body:
        end += "_"
    return [f"{first} <<'{end}'", *body, end]
