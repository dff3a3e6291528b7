"""The address of a node: ssh_config, the inventory that overrides it, and addresses of this machine."""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path

import pytest

from sparkcluster.cli.common import fleet_of
from sparkcluster.errors import UsageError
from sparkcluster.hosts import connect as connecting
from sparkcluster.hosts.connect import is_here
from sparkcluster.hosts.resolve import SshSettings, SshTarget, resolve
from sparkcluster.hosts.ssh import SshHost
from sparkcluster.spec.inventory import Inventory

ME = getpass.getuser()


def answers(monkeypatch, tmp_path, **hosts: str) -> None:
    """An ``ssh`` whose -G answers ``hosts`` by name; the test does not read the user's configuration."""
    folder = tmp_path / "bin"
    folder.mkdir()
    cases = "\n".join(f"  {name}) cat <<'END'\n{text}\nEND\n  ;;" for name, text in hosts.items())
    script = folder / "ssh"
    script.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\nfor last; do :; done\ncase $last in\n{cases}\n'
        '  bad) echo "config: line 3: Bad option" >&2; exit 255;;\n  *) echo "hostname $last";;\nesac\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("line", "agent"),
    [
        ("identityagent ~/Library/1password/agent.sock", f"{Path.home()}/Library/1password/agent.sock"),
        ('identityagent "~/Group Containers/t/agent.sock"', f"{Path.home()}/Group Containers/t/agent.sock"),
        ("identityagent ${PLACE}/agent.sock", "/run/agent.sock"),
        ("identityagent none", "none"),
        ("user nvidia", None),
    ],
)
def test_the_ssh_agent_comes_from_ssh_config(monkeypatch, tmp_path, line, agent):
    monkeypatch.setenv("PLACE", "/run")
    answers(monkeypatch, tmp_path, spark=line)
    assert resolve("spark", SshSettings()).agent == agent


def test_the_inventory_overrides_ssh_config(monkeypatch, tmp_path):
    answers(
        monkeypatch,
        tmp_path,
        spark="hostname 10.0.0.7\nuser nvidia\nport 2222\nidentityfile ~/.ssh/a\nidentityfile %d/b\nidentitiesonly yes\n"
        "userknownhostsfile ~/.ssh/kh ~/.ssh/kh2\nglobalknownhostsfile /etc/ssh/ssh_known_hosts\nhostkeyalias lab",
    )
    target = resolve("spark", SshSettings())
    home = Path.home()
    assert (target.host, target.user, target.port, target.key_name) == ("10.0.0.7", "nvidia", 2222, "[lab]:2222")
    assert target.identities == (home / ".ssh/a", home / "b")
    assert target.identities_only
    assert target.known_hosts == (home / ".ssh/kh", home / ".ssh/kh2", Path("/etc/ssh/ssh_known_hosts"))
    overridden = resolve(
        "spark", SshSettings(user="me", port=22, identity="~/k", known_hosts="/kh", host_keys="accept-new")
    )
    assert (overridden.user, overridden.port, overridden.identity) == ("me", 22, home / "k")
    assert overridden.host_keys == "accept-new"
    assert overridden.known_hosts[0] == Path("/kh")
    assert "-G -p 22 -l me -- spark" in (tmp_path / "asked").read_text()


def test_jumps_come_from_ssh_config_or_the_inventory_in_order(monkeypatch, tmp_path):
    answers(monkeypatch, tmp_path, spark="hostname 10.0.0.7\nproxyjump admin@gate:2200,inner", gate="hostname 1.2.3.4")
    inner = resolve("spark", SshSettings(identity="/k", host_keys="accept-new")).jump
    assert (inner.host, inner.host_keys, inner.identity) == ("inner", "accept-new", Path("/k"))
    assert (inner.jump.host, inner.jump.user, inner.jump.port, inner.jump.jump) == ("1.2.3.4", "admin", 2200, None)
    assert resolve("spark", SshSettings(jump="other")).jump.host == "other"


@pytest.mark.parametrize("jump", ["-oProxyCommand=x", "u@h:p"])
def test_an_invalid_jump_is_a_usage_error(monkeypatch, tmp_path, jump):
    answers(monkeypatch, tmp_path, spark=f"hostname spark\nproxyjump {jump}")
    with pytest.raises(UsageError, match="invalid jump host"):
        resolve("spark", SshSettings())


def test_a_jump_loop_is_a_usage_error(monkeypatch, tmp_path):
    answers(monkeypatch, tmp_path, a="hostname a\nproxyjump b", b="hostname b\nproxyjump a")
    with pytest.raises(UsageError, match="ProxyJump loops: a -> b"):
        resolve("a", SshSettings())


def test_tokens_of_a_proxy_command_are_expanded(monkeypatch, tmp_path):
    answers(monkeypatch, tmp_path, spark="hostname h\nuser u\nport 5\nproxycommand nc %h %p %r %n 100%%")
    assert resolve("spark", SshSettings()).proxy_command == "nc h 5 u spark 100%"


@pytest.fixture
def this_machine(monkeypatch):
    import ipaddress

    monkeypatch.setattr(connecting, "own_addresses", lambda: {ipaddress.ip_address("192.0.2.7")})
    monkeypatch.setattr(socket, "gethostname", lambda: "dgx-1")
    monkeypatch.setattr(socket, "getfqdn", lambda *_: "dgx-1.lan.example")


@pytest.mark.parametrize(
    ("target", "explicit_port", "here"),
    [
        (SshTarget("192.0.2.7", ME), False, True),
        (SshTarget("192.0.2.7", ME, port=2222), True, True),
        (SshTarget("127.0.0.1", ME), False, True),
        (SshTarget("127.0.0.1", ME, port=2222), True, False),
        (SshTarget("192.0.2.7", "somebody"), False, False),
        (SshTarget("192.0.2.7", ME, jump=SshTarget("gate", ME)), False, False),
        (SshTarget("dgx-1", ME), False, True),
        (SshTarget("DGX-1.local.", ME), False, True),
    ],
)
@pytest.mark.usefixtures("this_machine")
def test_auto_detects_the_local_machine(target, explicit_port, here):
    assert is_here(target, explicit_port=explicit_port) is here


@pytest.mark.parametrize(("name", "address"), [("spark-1.local", "127.0.0.1"), ("dgx-1.evil.example", "192.0.2.7")])
@pytest.mark.usefixtures("this_machine")
def test_a_name_resolved_by_a_neighbour_does_not_make_a_node_local(monkeypatch, name, address):
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    fleet = fleet_of(inventory({"host": name, "ssh": {"user": ME}}))
    assert isinstance(fleet[name], SshHost)
    fleet.close()


def inventory(*nodes, **more) -> Inventory:
    return Inventory.model_validate({"cluster": "c", "playbook": "p", "nodes": list(nodes), **more})
