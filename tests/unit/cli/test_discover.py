"""``discover``: found Sparks become a valid inventory or are added to one; nothing is overwritten without a question."""

from __future__ import annotations

import ipaddress
import json

import pytest
from docgen import json_schemas

from sparkcluster.cli.main import guarded
from sparkcluster.errors import AuthFailed
from sparkcluster.linting import lint
from sparkcluster.setup import mdns, networks, targets
from sparkcluster.setup.mdns import Browsed, Candidate
from sparkcluster.setup.networks import Attached
from sparkcluster.spec import consent
from sparkcluster.spec.load import load
from tests.unit.discovery import mac, machine, replace_ssh

LAN = (Attached("eth0", ipaddress.ip_interface("192.168.1.5/24")),)


def heard(other: int, twin: int = 1) -> tuple[tuple[str, str, str], ...]:
    return ((("enp1s0f0np0", "enp1s0f1np1")[twin], mac(other, twin), f"fe80::{other}"),)


@pytest.fixture
def network(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(networks, "attached", lambda: LAN)
    monkeypatch.setattr(mdns, "browse", lambda attached: Browsed())
    monkeypatch.setattr(targets, "RELEASE", tmp_path / "no-dgx-release")
    made = replace_ssh(monkeypatch)
    made.put("192.168.1.11", "fe80::1%enp1s0f1np1", answer=machine(1, "192.168.1.11/24", heard=heard(2)))
    made.put("192.168.1.12", "fe80::2%enp1s0f1np1", answer=machine(2, "192.168.1.12/24", heard=heard(1)))
    return made


def announce(monkeypatch, *names_and_addresses: tuple[str, str]) -> None:
    found = tuple(Candidate(f"{name}.local", address) for name, address in names_and_addresses)
    monkeypatch.setattr(mdns, "browse", lambda attached: Browsed(found))


TWO = ["--host", "192.168.1.11", "--host", "192.168.1.12", "--user", "nvidia"]


def test_the_inventory_goes_to_stdout_and_everything_else_to_stderr(network, capsys, tmp_path):
    assert guarded(["discover", *TWO]) == 0
    out, err = capsys.readouterr()
    (tmp_path / "mine.yaml").write_text(out)
    inventory = load(tmp_path / "mine.yaml").inventory
    assert [(node.name, node.host) for node in inventory.nodes] == [
        ("spark-0001", "192.168.1.11"),
        ("spark-0002", "192.168.1.12"),
    ]
    assert inventory.cluster == "sparks"
    assert inventory.ssh.user == "nvidia"
    assert lint([tmp_path / "mine.yaml"]).errors == ()
    assert "2 machines, 1 cable\n" in err
    assert "sparkcluster setup mine.yaml" in err


def test_the_json_document(network, capsys):
    network.put("192.168.1.13", answer=AuthFailed("no key was accepted", node="192.168.1.13", hint="ssh-copy-id x"))
    network.put("192.168.1.14", answer=machine(1, "192.168.1.11/24"))
    hosts = [*TWO, "--host", "192.168.1.13", "--host", "192.168.1.14"]
    assert guarded(["discover", *hosts, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    json_schemas.validate("discover", document)
    assert [each["host"] for each in document["sparks"]] == ["192.168.1.11", "192.168.1.12"]
    assert [each["host"] for each in document["skipped"]] == ["192.168.1.14"]
    assert [each["kind"] for each in document["cabling"]] == ["cable"]
    assert [each["hint"] for each in document["troubles"]] == ["ssh-copy-id x"]
    assert "cluster: sparks" in document["inventory"]


def test_without_sparks_nothing_is_written_and_the_json_lists_are_empty(network, capsys, tmp_path):
    assert guarded(["discover"]) == 1
    out, err = capsys.readouterr()
    assert (out, "--host" in err) == ("", True)
    assert guarded(["discover", "-o", "mine.yaml", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    json_schemas.validate("discover", document)
    assert document == {"sparks": [], "skipped": [], "cabling": [], "troubles": [], "inventory": None, "file": None}
    assert not (tmp_path / "mine.yaml").exists()


def test_machines_that_refuse_the_key_are_not_reported_as_switched_off(network, capsys):
    refusal = AuthFailed(
        "192.168.1.13: no key was accepted", node="192.168.1.13", hint="ssh-copy-id nvidia@192.168.1.13"
    )
    network.put("192.168.1.13", answer=refusal)
    assert guarded(["discover", "--host", "192.168.1.13", "--user", "nvidia"]) == 1
    err = capsys.readouterr().err
    assert "no key was accepted\nhint: ssh-copy-id nvidia@192.168.1.13" in err
    assert "switch" not in err


def test_names_that_look_like_a_spark_are_tried_and_others_are_not(network, capsys, monkeypatch):
    """Without a terminal no question can be asked."""
    announce(monkeypatch, ("spark-0001", "192.168.1.11"), ("nas", "192.168.1.9"))
    assert guarded(["discover", "--user", "nvidia"]) == 0
    assert network.tried == ["192.168.1.11", "fe80::2%enp1s0f1np1", "192.168.1.12"]
    err = capsys.readouterr().err
    assert "not named like a Spark: nas.local" in err


@pytest.mark.parametrize(
    "words",
    [
        ["--cluster", "a", "--into", "y.yaml"], ["--user", "Bob"], ["--host=-x"], ["--host", "192.168.1.11:22"],
        ["-o", "x.yaml", "--into", "y.yaml"], ["--into", "missing.yaml"], ["-o", "no/such/x.yaml"],
    ],
)  # fmt: skip
def test_bad_usage_contacts_no_node(network, words):
    assert guarded(["discover", *words]) == 2
    assert network.tried == []


def test_a_file_is_not_overwritten_without_a_question(network, capsys, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("precious")
    assert guarded(["discover", *TWO, "-o", "mine.yaml"]) == 2
    assert file.read_text() == "precious"
    assert network.tried == []
    assert "mine.yaml already exists" in capsys.readouterr().err
    assert guarded(["discover", *TWO, "-o", "mine.yaml", "--yes"]) == 0
    assert "cluster: sparks" in file.read_text()
    assert guarded(["discover", *TWO, "-o", "mine.yaml", "--yes", "--cluster", "a b"]) == 2
    assert "cluster: sparks" in file.read_text()


# Adding to an inventory

MINE = """\
# Mine; keep this.
cluster: home

ssh: {user: nvidia, identity: ~/id}
nodes:
  - name: first     # the head
    host: 192.168.1.11

playbook: gpt-oss-120b   # fits two
"""
INTO = ["discover", "--into", "mine.yaml", "--yes"]
ADDED = "  - host: 192.168.1.12\n    name: spark-0002\n"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "id").write_text("")
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    path.chmod(0o600)
    return path


def test_new_sparks_are_added_and_the_rest_of_the_file_is_unchanged(network, capsys, mine):
    assert guarded(["discover", "--into", "mine.yaml", "--yes"]) == 0
    assert mine.read_text() == MINE.replace("\nplaybook", ADDED + "\nplaybook")
    assert mine.stat().st_mode & 0o777 == 0o600
    out, err = capsys.readouterr()
    assert "first" in out
    assert "+  - host: 192.168.1.12" in err
    assert network.addresses[0].ssh.identity == "~/id"
    assert network.addresses[-1].ssh.identity == "~/id"
    assert [path.name for path in mine.parent.iterdir() if path.name.startswith(".")] == []
    assert guarded([*INTO, "--host", "192.168.1.12"]) == 0  # already added
    assert mine.read_text() == MINE.replace("\nplaybook", ADDED + "\nplaybook")


def test_unreachable_nodes_are_reported_and_stay_in_the_inventory(network, capsys, mine):
    network.put("192.168.1.11", answer=AuthFailed("first: no key was accepted", node="first"))
    assert guarded(["discover", "--into", "mine.yaml", "--yes", "--host", "192.168.1.12"]) == 1
    assert mine.read_text() == MINE.replace("\nplaybook", ADDED + "\nplaybook")
    err = capsys.readouterr().err
    assert "error: first: no key was accepted" in err


def test_the_playbook_of_discover_is_extended_from_one_spark_to_several(network, capsys, tmp_path):
    hosts = [f"192.168.1.{10 + number}" for number in (1, 2, 3)]
    for number, host in enumerate(hosts, 1):
        network.put(host, answer=machine(number, f"{host}/24"))
    whole, one = tmp_path / "whole.yaml", tmp_path / "mine.yaml"
    assert guarded(["discover", *(f"--host={host}" for host in hosts), "-o", "whole.yaml", "--cluster", "mine"]) == 0
    assert guarded(["discover", "--host", hosts[0], "-o", "mine.yaml", "--cluster", "mine"]) == 0
    capsys.readouterr()
    assert guarded([*INTO, *(f"--host={host}" for host in hosts[1:])]) == 0
    assert load(one).inventory == load(whole).inventory
    assert lint([one]).findings == lint([whole]).findings
    assert one.read_text().count("\n# `sparkcluster playbooks` lists") == 1


def test_ssh_files_used_to_reach_new_sparks_are_written_if_they_differ(network, mine, tmp_path):
    (tmp_path / "new key").write_text("")
    flags = ["-i", "new key", "--known-hosts", "kh", "--user", "bob"]
    assert guarded([*INTO, "--host", "192.168.1.12", *flags]) == 0
    first, second = load(mine).inventory.nodes
    assert first.ssh is None
    assert second.ssh.model_dump(exclude_none=True, exclude_defaults=True) == {
        "user": "bob", "identity": str(tmp_path / "new key"), "known_hosts": str(tmp_path / "kh")
    }  # fmt: skip


def test_a_file_written_by_discover_needs_no_consent_and_an_existing_one_does(network, mine, tmp_path, capsys):
    (tmp_path / "key").write_text("")
    assert guarded(["discover", *TWO, "-i", "key"]) == 0
    (tmp_path / "new.yaml").write_text(capsys.readouterr().out)
    assert consent.unaccepted(load(tmp_path / "new.yaml")) == []
    mine.write_text(f"{MINE}after_ready: [curl x]\n")
    (tmp_path / "other").write_text("")
    capsys.readouterr()
    assert guarded([*INTO[:-1], "--host", "192.168.1.12", "-i", "other"]) == 2
    said = capsys.readouterr().err
    assert "error: not accepted yet: after_ready, identity\n" in said
    assert "hint: add --yes, or answer y in a terminal\n" in said
    assert guarded([*INTO, "--host", "192.168.1.12", "-i", "other"]) == 0
    assert consent.unaccepted(load(mine)) == []
