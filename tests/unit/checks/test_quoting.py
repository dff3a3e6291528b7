"""Remedies are pasted into a shell: values from nodes are single quoted words."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sparkcluster
from sparkcluster import checks, topology
from sparkcluster.checks.check import Context

PACKAGE = Path(sparkcluster.__file__).parent
MODULES = [*sorted(PACKAGE.glob("checks/*.py")), *sorted(PACKAGE.glob("release/*.py"))]
ATTACK = "x'; touch /tmp/taken; or touch /tmp/taken INVENTORY; '"


def harmless(remedy: str) -> bool:
    """Whether a shell treats the attack in ``remedy`` as one word."""
    return ATTACK in " ".join(shlex.split(remedy)) and not any(word.startswith("touch") for word in shlex.split(remedy))


def renamed(facts: Any, **changes: Any) -> Any:
    """``facts`` of a node that lies about all names."""
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


@pytest.mark.parametrize("changes", [{}, {"carrier": True, "mtu": 1400}])
def test_remedies_quote_values(world, changes) -> None:
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
        assert not {"; or ", "INVENTORY"} & {each for each in ("; or ", "INVENTORY") if each in remedy}, remedy


COMMAND = re.compile(
    r"(?:.*(?:: |; | && ))?(?:sudo|docker|ip|ping|df|du|ls|rm|cat|getent|rsync|show_gids|for i in) ", re.DOTALL
)
# Numbers, addresses, constants, and a name that was compared with its word.
PLAIN = {"size - 28", "port", "listener.port", "wired", "NETPLAN", "first.target_address", "rank.address", "name"}
PLAIN |= {"SERIES", "RAY_DASHBOARD_PORT"}
PLAIN |= {"interfaces"}  # words, by ``shell``


def written(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "{}"


def calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    return (each for each in ast.walk(tree) if isinstance(each, ast.Call) and ast.unparse(each.func) in names)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_every_value_in_a_command_is_quoted_as_one_word(module: Path) -> None:
    """Also in remedies of no other test. The word after "on" is a node's name in the inventory."""
    for command in ast.walk(ast.parse(module.read_text())):
        if isinstance(command, ast.JoinedStr) and COMMAND.match("".join(map(written, command.values))):
            for before, value in zip([ast.Constant(""), *command.values], command.values, strict=False):
                if isinstance(value, ast.FormattedValue) and not written(before).endswith("on "):
                    text = ast.unparse(value.value)
                    assert text in PLAIN or text.startswith("shell("), ast.unparse(command)


@pytest.mark.parametrize("room", sorted(each.name for each in PACKAGE.iterdir() if each.name not in {"lab", "hosts"}))
def test_shell_words_are_quoted_in_one_place(room: str) -> None:
    """Arguments of ``shell`` are quoted, and the text before them never contains a value. Scripts of ``setup`` are not hints."""
    modules = [PACKAGE / room] if room.endswith(".py") else sorted((PACKAGE / room).rglob("*.py"))
    for module in modules:
        tree = ast.parse(module.read_text())
        if module.name not in {"printable.py", "script.py"}:
            assert not list(calls(tree, "shlex.quote", "quote")), module
        for call in calls(tree, "shell"):
            before = call.args[0]
            assert isinstance(before, ast.Constant) or ast.unparse(before).isupper(), ast.unparse(call)
