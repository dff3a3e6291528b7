"""Remedies are pasted into a shell: what a node says is one quoted word in them."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sparkcluster
from sparkcluster import checks, topology
from sparkcluster.checks.registry import Context

PACKAGE = Path(sparkcluster.__file__).parent
MODULES = [*sorted(PACKAGE.glob("checks/*.py")), PACKAGE / "launch/readiness.py", PACKAGE / "release/outcome.py"]
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


@pytest.mark.parametrize("changes", [{}, {"carrier": True, "mtu": 1400}])
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


COMMAND = re.compile(
    r"(?:.*(?:: |; | && ))?(?:sudo|docker|ip|ping|df|du|ls|rm|getent|rsync|show_gids|for i in) ", re.DOTALL
)
# Numbers, addresses and constants.
PLAIN = {"size", "foreign.uid", "size - 28", "expected", "port", "listener.port", "SERIES", "wired", "NETPLAN"}


def written(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "{}"


def made(name: str, function: ast.FunctionDef) -> Iterator[ast.expr]:
    """What a variable of a function is assigned."""
    for node in ast.walk(function):
        for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
            if isinstance(target, ast.Name) and target.id == name:
                yield node.iter if isinstance(node, ast.comprehension | ast.For) else node.value  # type: ignore[attr-defined]


@functools.cache
def functions(*modules: Path) -> dict[str, ast.FunctionDef]:
    trees = [ast.parse(module.read_text()) for module in modules]
    return {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def is_quoted(value: ast.expr, function: ast.FunctionDef) -> bool:
    """Whether a value in a command consists of quoted words, also where it was made by an earlier statement."""
    if isinstance(value, ast.Call):
        called = ast.unparse(value.func)
        if isinstance(value.func, ast.Attribute) and called != "shlex.quote":  # of a text
            parts = value.args if called.endswith(".join") else [value.func.value]
            return all(is_quoted(part, function) for part in parts)
        return called in {"quote", "shlex.quote"} or "quote(" in ast.unparse(functions(*MODULES)[called])
    if isinstance(value, ast.JoinedStr):
        parts = [part.value for part in value.values if isinstance(part, ast.FormattedValue)]
        return all(is_quoted(part, function) for part in parts)
    if isinstance(value, ast.Subscript):
        return is_quoted(value.value, function)
    if isinstance(value, ast.ListComp | ast.GeneratorExp):
        return is_quoted(value.elt, function)
    sources = list(made(value.id, function)) if isinstance(value, ast.Name) else []
    if ast.unparse(value) in PLAIN:
        return True
    return bool(sources) and all(is_quoted(source, function) for source in sources)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_every_value_in_a_command_is_quoted(module: Path) -> None:
    """Also in remedies that no other test brings about. What follows "on" is a node's name in the inventory."""
    for function in functions(module).values():
        for command in ast.walk(function):
            if isinstance(command, ast.JoinedStr) and COMMAND.match("".join(map(written, command.values))):
                for before, value in zip([ast.Constant(""), *command.values], command.values, strict=False):
                    if isinstance(value, ast.FormattedValue) and not written(before).endswith("on "):
                        assert is_quoted(value.value, function), ast.unparse(command)
