"""Log in to candidate machines and to machines at the other end of their cables, and identify the Sparks."""

from __future__ import annotations

import dataclasses
import ipaddress
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from sparkcluster.errors import SparkclusterError
from sparkcluster.facts.base import read
from sparkcluster.facts.machine import same_machine
from sparkcluster.facts.network import Interface
from sparkcluster.facts.survey import Neighbour, Survey
from sparkcluster.hosts.connect import Address, behind, connect, store_keys
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.handshake import Prompts
from sparkcluster.hosts.resolve import SshSettings
from sparkcluster.setup.inventory_file import node_names
from sparkcluster.setup.networks import Attached, network_of
from sparkcluster.setup.ports import DRIVER, Trouble
from sparkcluster.setup.survey import survey

How = Literal["inventory", "--host", "this machine", "mDNS", "cable"]
"""Why a machine was tried: it is in the inventory, ``--host`` named it, it is the local machine, it announced itself by
mDNS, or a Spark sees it at the other end of a cable."""

HF_HOME = "~/.cache/huggingface"


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A machine to try.

    Attributes:
        label: unique name for messages until the machine has a name in an inventory.
        address: how to reach it.
        how: where it was found.
    """

    label: str
    address: Address
    how: How


@dataclasses.dataclass(frozen=True, slots=True)
class Spark(Target):
    """A machine that was reached as ``user`` and can be added to an inventory."""

    user: str
    survey: Survey

    @property
    def host(self) -> str:
        """Its address or name for an inventory."""
        return self.address.host


@dataclasses.dataclass(frozen=True, slots=True)
class Skipped:
    """A machine that is skipped, and why."""

    label: str
    host: str
    why: str


@dataclasses.dataclass(slots=True)
class Discovered:
    """Result of ``discover``.

    Attributes:
        sparks: in the order of the targets, then machines found through cables.
        skipped: machines that were reached but are not included.
        failed: connection errors of the other machines, by label.
        troubles: problems of the machines that were found.
    """

    sparks: list[Spark] = dataclasses.field(default_factory=list)
    skipped: list[Skipped] = dataclasses.field(default_factory=list)
    failed: dict[str, SparkclusterError] = dataclasses.field(default_factory=dict)
    troubles: list[Trouble] = dataclasses.field(default_factory=list)


def by_name(sparks: Sequence[Spark]) -> dict[str, Spark]:
    """``sparks`` by node name: the name in the inventory, or a new name made from the hostname."""
    listed = [spark.label for spark in sparks if spark.how == "inventory"]
    new = node_names([spark.survey.hostname for spark in sparks if spark.how != "inventory"], listed)
    names = iter(new)
    return {spark.label if spark.how == "inventory" else next(names): spark for spark in sparks}


def discover(
    targets: Sequence[Target],
    networks: Sequence[Attached],
    prompts: Prompts,
) -> Discovered:
    """Survey ``targets``, whose labels differ, and the machines at the other end of their cables.

    Args:
        targets: machines to try, in parallel.
        networks: local networks; a Spark reached over a cable must also have an address in one of them.
        prompts: asks about host keys and for passwords.

    Raises:
        UsageError: ssh_config cannot be used, or the known_hosts file cannot be written.
    """
    with connect({target.label: target.address for target in targets}, prompts) as fleet:
        search = _Search(fleet, networks, prompts)
        search.targets(targets)
        search.cables()
    return search.found


@dataclasses.dataclass(slots=True)
class _Search:
    fleet: Fleet
    networks: Sequence[Attached]
    prompts: Prompts
    found: Discovered = dataclasses.field(default_factory=Discovered)

    def targets(self, targets: Sequence[Target]) -> None:
        """Survey ``targets``."""
        collected = survey(self.fleet, HF_HOME)
        self.found.failed |= collected.errors
        for target in (each for each in targets if each.label in collected.surveys):
            answer = collected.surveys[target.label]
            spark = Spark(target.label, target.address, target.how, self.fleet[target.label].user, answer)
            outside = answer.management()
            if target.how == "this machine" and outside is not None:
                spark = _moved(spark, str(outside.ip))
            on_cable = any(str(each.ip) == spark.host for port in _ports(answer).values() for each in port.ipv4())
            self._add(spark, spark.address.ssh if spark.how == "mDNS" and on_cable else None, spark.label)

    def _add(self, spark: Spark, ssh: SshSettings | None, name: str) -> None:
        """Add ``spark`` if it is a new Spark; with ``ssh``, at an address that is not on a cable."""
        if self._belongs(spark):
            settled = self._outside(spark, ssh, name) if ssh else spark
            self.found.sparks += [settled] if settled is not None else []

    def _belongs(self, spark: Spark) -> bool:
        """Whether it is a Spark that was not found before; otherwise it is listed as skipped."""
        same = next((each for each in self.found.sparks if same_machine(each.survey, spark.survey)), None)
        if same is not None:
            self.found.skipped.append(Skipped(spark.label, spark.host, f"same machine as {same.label}"))
            return False
        if spark.survey.is_spark or spark.how == "inventory":
            return True
        if spark.how != "--host":
            self.found.skipped.append(Skipped(spark.label, spark.host, "not a Spark: no /etc/dgx-release"))
            return False
        text = f"{spark.label} has no /etc/dgx-release and may not be a Spark; included because --host names it"
        hint = f"check {spark.label}, or remove it from --host"
        self.found.troubles.append(Trouble("no-dgx-release", spark.label, text, hint))
        return True

    def cables(self) -> None:
        """Survey machines that the Sparks found so far see on their QSFP ports, one hop only."""
        tried: set[int] = set()
        for spark in list(self.found.sparks):
            ports = _ports(spark.survey)
            for neighbour in spark.survey.neighbours:
                # Both twins of the other end answer; the addresses of a ConnectX-7 end in +0, +1, +4 and +5.
                card = int(neighbour.mac.replace(":", ""), 16) >> 3
                known = {port.mac for each in self.found.sparks for port in read(each.survey.interfaces) or ()}
                new = neighbour.mac not in known and card not in tried
                if new and neighbour.interface in ports and neighbour.address is not None:
                    tried.add(card)
                    self._neighbour(spark, neighbour, neighbour.address, ports[neighbour.interface])

    def _neighbour(self, spark: Spark, neighbour: Neighbour, address: str, port: Interface) -> None:
        """Survey the machine that ``spark`` sees on ``port`` at ``address``."""
        label = f"the machine at the other end of {port.port or port.name} of {spark.label} ({neighbour.mac})"
        scope = f"%{neighbour.interface}" if ":" in address else ""
        ssh = dataclasses.replace(spark.address.ssh, user=spark.user, port=None, jump=None, host_keys="reject")
        # The address is valid only on this cable, so its host key is not kept.
        with tempfile.TemporaryDirectory(prefix="sparkcluster-") as directory:
            once = dataclasses.replace(ssh, known_hosts=f"{directory}/known_hosts")
            node = Address(f"{address}{scope}", "ssh", once)
            with Fleet({label: behind(self.fleet[spark.label], label, node, self.prompts)}) as fleet:
                collected = survey(fleet, HF_HOME)
                user = fleet[label].user
        if label in collected.errors:
            message = collected.errors[label].message
            self._unreached(spark.label, message if message.startswith(label) else f"{label}: {message}")
            return
        answer = collected.surveys[label]
        (name,) = node_names([answer.hostname], [*self.fleet.names, *(each.label for each in self.found.sparks)])
        found = Spark(name, node, "cable", user, answer)
        self._add(found, ssh, f"{label[:-1]}, {found.label})")

    def _outside(self, spark: Spark, ssh: SshSettings, name: str) -> Spark | None:
        """``spark`` at an address that is not on a cable, or None; messages call it ``name``."""
        addresses = [str(address.ip) for address in spark.survey.outside()]
        near = [each for each in addresses if network_of(ipaddress.ip_address(each), self.networks)]
        if not near:
            seen = f", only {', '.join(addresses[:4])}" if addresses else ""
            self._unreached(spark.label, f"{name} has no address on your network{seen}")
            return None
        moved = _moved(spark, near[0], ssh)
        # The machine reports this address itself: store its host key only after the same machine answered there.
        with tempfile.TemporaryDirectory(prefix="sparkcluster-") as directory:
            keys = Path(directory, "known_hosts")
            first = _moved(spark, near[0], dataclasses.replace(ssh, new_keys=str(keys))).address
            store_keys(spark.label, first, spark.survey.host_keys)
            with connect({spark.label: first}, self.prompts) as fleet:
                collected = survey(fleet, HF_HOME)
            if spark.label in collected.errors:
                error = collected.errors[spark.label]
                self._unreached(spark.label, f"{name} is unreachable at {near[0]}: {error.message}")
                return None
            answer = collected.surveys[spark.label]
            if not same_machine(answer, spark.survey):
                self._unreached(spark.label, f"another machine answers at {near[0]}, the address that {name} reports")
                return None
            if keys.exists():
                store_keys(
                    spark.label, moved.address, [line.partition(" ")[2] for line in keys.read_text().splitlines()]
                )
        return dataclasses.replace(moved, survey=answer)

    def _unreached(self, label: str, text: str) -> None:
        hint = "connect its RJ45 port or its WiFi to your network, then: sparkcluster discover --host ADDRESS"
        self.found.troubles.append(Trouble("not-reached", label, text, hint))


def _moved(spark: Spark, host: str, ssh: SshSettings | None = None) -> Spark:
    address = dataclasses.replace(spark.address, host=host, connection="auto", ssh=ssh or spark.address.ssh)
    return dataclasses.replace(spark, address=address)


def _ports(found: Survey) -> dict[str, Interface]:
    """QSFP ports by interface name."""
    return {each.name: each for each in read(found.interfaces) or () if each.driver == DRIVER}
