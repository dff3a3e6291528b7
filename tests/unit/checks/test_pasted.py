"""Remedies are pasted into a shell: what a node says is one quoted word in them."""

from __future__ import annotations

import re
import shlex
from types import SimpleNamespace
from typing import Any

import pytest

from sparkcluster import checks, topology
from sparkcluster.checks import hostnames, reachability
from sparkcluster.checks.registry import Context

ATTACK = "x'; touch /tmp/taken; '"


def harmless(remedy: str) -> bool:
    """Whether a shell takes the attack in ``remedy`` for a word."""
    return ATTACK in " ".join(shlex.split(remedy)) and not any(word.startswith("touch") for word in shlex.split(remedy))


def renamed(facts: Any, **changes: Any) -> Any:
    """``facts`` as a node would say them that lies about the name of everything."""
    interfaces = [
        one.model_copy(update={"name": f"{one.name}{ATTACK}", "carrier": False, **changes}) for one in facts.interfaces
    ]
    hcas = [
        one.model_copy(update={"name": f"{one.name}{ATTACK}", "netdev": f"{one.netdev}{ATTACK}", "gids": ()})
        for one in facts.hcas
    ]
    disks = tuple(one.model_copy(update={"path": f"/{ATTACK}", "free_bytes": 0}) for one in facts.disks)
    update = {
        "interfaces": tuple(interfaces),
        "hcas": tuple(hcas),
        "disks": disks,
        "user": ATTACK,
        "kernel": ATTACK,
        "hostname": ATTACK,
    }
    return facts.model_copy(update=update)


@pytest.mark.parametrize("changes", [{}, {"mtu": 1234}, {"carrier": True}, {"carrier": True, "mtu": 1400}])
def test_remedies_quote_facts(world, changes) -> None:
    one = world()
    facts = {
        name: renamed(each, **(changes if name == "alpha" else {"carrier": True})) for name, each in one.facts.items()
    }
    try:
        found = topology.build(one.spec, facts)
    except Exception:  # noqa: BLE001 - names that are no names may place no node
        found = topology.build(one.spec, one.facts)
    findings = checks.run_stage(Context(one.spec, facts, found), ("facts",))
    remedies = [remedy for finding in findings for remedy in finding.remedy if "touch /tmp/taken" in remedy]
    assert remedies
    for remedy in remedies:
        assert harmless(re.sub(r"   (?:on|if|to) .*$", "", remedy)), remedy


@pytest.mark.parametrize("firewall", ["ufw", "firewalld", "nft"])
def test_remedies_of_firewalls_quote(firewall: str) -> None:
    node = SimpleNamespace(firewall=firewall, interface_of=lambda _: SimpleNamespace(name=ATTACK))
    path = SimpleNamespace(target="alpha", target_address="10.0.0.1")
    assert harmless(reachability._open(SimpleNamespace(facts={"alpha": node}), "alpha", [path])[0])


def test_remedies_of_names_quote() -> None:
    looked_up = SimpleNamespace(name=ATTACK, on="alpha", node="beta")
    (hint,) = hostnames._fix_hosts(looked_up, SimpleNamespace(interfaces=()))
    assert harmless(hint.partition("   on ")[0])
