"""Which machines are tried, which of them are Sparks, and at which address."""

from __future__ import annotations

import ipaddress

import pytest

from sparkcluster.errors import AuthFailed
from sparkcluster.hosts.connect import Address
from sparkcluster.hosts.resolve import SshSettings, SshTarget
from sparkcluster.setup import discover as discovery
from sparkcluster.setup.discover import Discovered, Skipped, Target
from sparkcluster.setup.networks import Attached
from tests.unit.discovery import NO_SPARK, mac, machine, replace_ssh

LAN = [Attached("eth0", ipaddress.ip_interface("192.168.1.5/24"))]
FE80 = "fe80::4ebb:47ff:fe2d:261"


class Operator:
    """Trusts no host key, and gives a password whenever asked."""

    def __init__(self):
        self.asked = []

    def host_key(self, name, target, kind, fingerprint):
        return False

    def password(self, name, target, *, again):
        self.asked.append(target.host)
        return f"typed for {target.host}"


def discover(targets: list[Target], networks: list[Attached]) -> Discovered:
    return discovery.discover(targets, networks, Operator())


@pytest.fixture
def network(monkeypatch):
    return replace_ssh(monkeypatch)


def at(host: str, how: str = "--host", **ssh) -> Target:
    return Target(host.removesuffix(".local"), Address(host, ssh=SshSettings(**ssh)), how)


def hosts(found: Discovered) -> list[tuple[str, str, str]]:
    return [(each.label, each.host, each.how) for each in found.sparks]


def test_sparks_are_found_and_others_are_skipped(network):
    network.put("192.168.1.11", answer=machine(1, "192.168.1.11/24"))
    network.put("192.168.1.12", answer=machine(2, "192.168.1.12/24", dgx=NO_SPARK))
    network.put("192.168.1.13", answer=AuthFailed("no key was accepted", node="192.168.1.13"))
    found = discover([at(f"192.168.1.{last}", "mDNS") for last in (11, 12, 13)], LAN)
    assert hosts(found) == [("192.168.1.11", "192.168.1.11", "mDNS")]
    assert found.skipped == [Skipped("192.168.1.12", "192.168.1.12", "not a Spark: no /etc/dgx-release")]
    assert list(found.failed) == ["192.168.1.13"]


def test_a_specified_machine_is_included_although_it_is_not_a_spark(network):
    network.put("box", answer=machine(1, "192.168.1.11/24", dgx=NO_SPARK))
    found = discover([at("box")], LAN)
    assert hosts(found) == [("box", "box", "--host")]
    assert [trouble.name for trouble in found.troubles] == ["no-dgx-release"]


def test_a_machine_with_several_addresses_counts_once(network):
    network.put("192.168.1.11", "192.168.1.77", answer=machine(1, "192.168.1.11/24"))
    found = discover([at("192.168.1.11"), at("192.168.1.77")], LAN)
    assert hosts(found) == [("192.168.1.11", "192.168.1.11", "--host")]
    assert found.skipped == [Skipped("192.168.1.77", "192.168.1.77", "same machine as 192.168.1.11")]


HEARD = (("enp1s0f1np1", mac(2, 1), FE80), ("enP2p1s0f1np1", mac(2, 3), "fe80::2"))


def test_the_machine_behind_a_cable_is_reached_through_the_spark_and_written_with_its_management_address(network):
    network.put("192.168.1.11", answer=machine(1, "192.168.1.11/24", heard=HEARD))
    network.put(f"{FE80}%enp1s0f1np1", "192.168.1.12", answer=machine(2, "10.1.1.1/24", "192.168.1.12/24"))
    found = discover([at("192.168.1.11", user="bob", identity="/k")], LAN)
    assert hosts(found) == [("192.168.1.11", "192.168.1.11", "--host"), ("spark-0002", "192.168.1.12", "cable")]
    assert network.jumps == {f"{FE80}%enp1s0f1np1": "192.168.1.11"}
    assert network.tried == ["192.168.1.11", f"{FE80}%enp1s0f1np1", "192.168.1.12"]
    over_cable, direct = network.addresses[1:]
    assert over_cable.ssh.known_hosts.endswith("/known_hosts")
    assert direct.ssh == SshSettings(user="bob", identity="/k", new_keys=direct.ssh.new_keys)
    assert found.sparks[1].address.ssh == SshSettings(user="bob", identity="/k")
    assert found.troubles == []


def test_a_password_is_asked_for_separately_at_that_address(network):
    """That address may belong to another machine: it gets no password that was typed for this one."""
    network.put("192.168.1.11", answer=machine(1, "192.168.1.11/24", heard=HEARD))
    network.put(f"{FE80}%enp1s0f1np1", "192.168.1.12", answer=machine(2, "192.168.1.12/24"))
    discover([at("192.168.1.11")], LAN)
    over_cable, prompts = network.prompts[-2:]
    target = SshTarget("192.168.1.12", "nvidia")
    assert over_cable.password("spark-0002", SshTarget(FE80, "nvidia"), again=False) == f"typed for {FE80}"
    assert prompts.password("spark-0002", target, again=False) == "typed for 192.168.1.12"


def test_a_machine_without_an_address_in_the_network_is_reported(network):
    network.put("192.168.1.11", answer=machine(1, "192.168.1.11/24", heard=HEARD))
    network.put(f"{FE80}%enp1s0f1np1", answer=machine(2))
    found = discover([at("192.168.1.11")], LAN)
    assert len(found.sparks) == 1
    (trouble,) = found.troubles
    assert f"p1 of 192.168.1.11 ({mac(2, 1)}, spark-0002)" in trouble.text
    assert "RJ45" in trouble.hint


def test_an_address_outside_the_networks_is_not_tried(network):
    """It is the machine's own statement."""
    network.put("192.168.1.11", answer=machine(1, "192.168.1.11/24", heard=HEARD))
    network.put(f"{FE80}%enp1s0f1np1", "10.9.9.9", answer=machine(2, "10.9.9.9/24"))
    found = discover([at("192.168.1.11")], LAN)
    assert "10.9.9.9" not in network.tried
    assert found.troubles[0].text.endswith("has no address on your network, only 10.9.9.9")


@pytest.mark.parametrize(("answering", "stored"), [(2, True), (7, False)])
def test_reported_host_keys_are_stored_once_the_same_machine_answered(network, tmp_path, answering, stored):
    """A machine's statements over the cable are not yet trusted: neither its address nor its keys."""
    network.put("192.168.1.11", answer=machine(1, "192.168.1.11/24", heard=HEARD))
    network.put(f"{FE80}%enp1s0f1np1", answer=machine(2, "192.168.1.12/24"))
    network.put("192.168.1.12", answer=machine(answering, "192.168.1.12/24"))
    known_hosts = tmp_path / "known_hosts"
    line = f"192.168.1.12 ssh-ed25519 {'A' * 40}0002"
    found = discover([at("192.168.1.11", known_hosts=str(known_hosts))], LAN)
    assert (len(found.sparks) == 2) is stored
    assert any("another machine answers" in trouble.text for trouble in found.troubles) is not stored
    assert (known_hosts.read_text().splitlines() if known_hosts.exists() else []) == [line] * stored


def test_neighbours_of_neighbours_are_not_contacted(network):
    network.put("192.168.1.11", answer=machine(1, "192.168.1.11/24", heard=HEARD))
    beyond = machine(2, "192.168.1.12/24", heard=(("enp1s0f0np0", mac(3, 0), "fe80::3"),))
    network.put(f"{FE80}%enp1s0f1np1", "192.168.1.12", answer=beyond)
    assert len(discover([at("192.168.1.11")], LAN).sparks) == 2
    assert not any("fe80::3" in tried for tried in network.tried)


def test_hostile_names_and_addresses_are_harmless(network):
    network.put("a", answer=machine(1, "192.168.1.11/24", heard=(("enp1s0f1np1", mac(3, 1), "fe80::3"),)))
    network.put("fe80::3%enp1s0f1np1", answer=machine(3, hostname="\x1b[31m" + "x" * 1000))
    found = discover([at("a")], LAN)
    assert all(trouble.text.isprintable() and len(trouble.text) < 400 for trouble in found.troubles)


@pytest.mark.parametrize(
    "changes",
    [
        {"host_keys": ["ssh-ed25519 ключ"]},
        {"host_keys": ["ssh-ed25519 AAA"]},
        {"neighbours": [{"interface": "enp1s0f1np1", "mac": mac(3, 1), "address": "fe80::3%$(reboot)"}]},
        {"neighbours": [{"interface": "$(reboot)", "mac": mac(3, 1), "address": "fe80::3"}]},
    ],
)
def test_an_invalid_answer_is_an_error_of_its_machine_and_the_others_are_found(network, changes):
    network.put("192.168.1.11", answer=machine(1, "192.168.1.11/24", heard=HEARD))
    network.put("192.168.1.13", answer=machine(3, "192.168.1.13/24", **changes))
    network.put(f"{FE80}%enp1s0f1np1", "192.168.1.12", answer=machine(2, "192.168.1.12/24", **changes))
    found = discover([at("192.168.1.11"), at("192.168.1.13")], LAN)
    assert hosts(found) == [("192.168.1.11", "192.168.1.11", "--host")]
    assert list(found.failed) == ["192.168.1.13"]
    assert "malformed answer" in found.troubles[0].text
