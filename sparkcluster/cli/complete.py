"""``sparkcluster __complete LINE``: what may follow on a command line, for the scripts in ``shell/``.

It runs at every press of Tab: it imports one command and no model of the inventory, contacts no node, and ends with
exit code 0 and no message whatever the line holds. Commands are not asked what their arguments may be: an argument's
metavar says so, here, in one table.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkcluster.cli.commands import COMMANDS
from sparkcluster.cli.common import default_inventory, is_inventory
from sparkcluster.cli.output import write
from sparkcluster.cli.parser import Parser, parser_of

Values = dict[str, str]  # each with a description, which may be empty

# What the shell adds to the values itself: it knows how to quote and show paths.
NOTHING, FILES, YAML = "none", "files", "yaml"

_MAX_BYTES = 1 << 20
# Nothing that a shell would have to quote: names come from files that others may have written.
_PLAIN = re.compile(r"[A-Za-z0-9._:+@%=,/-]+")


def run(words: Sequence[str]) -> int:
    """Print what may follow: ``none``, ``files`` or ``yaml``, then values with a tab and a description each."""
    import sys

    from sparkcluster.printable import clean

    try:
        added, values = candidates(words[0] if words else "")
    except Exception:  # noqa: BLE001 - nobody asked for anything that could be reported here
        added, values = NOTHING, {}
    lines = [f"{value}\t{' '.join(clean(about).split())}" for value, about in values.items() if _PLAIN.fullmatch(value)]
    write(sys.stdout, "\n".join([added, *lines]), keep="\t\n")
    return 0


def candidates(line: str) -> tuple[str, Values]:
    """What may stand at the end of ``line``, a command line up to the cursor as it was typed.

    Returns:
        What the shell is to add (``NOTHING``, ``FILES`` or ``YAML``), and values that begin with the last word: of
        ``--flag=value`` with what follows the ``=`` alone.
    """
    *before, prefix = _words(line)
    while before and re.match(r"[A-Za-z_]\w*=", before[0]):
        del before[0]
    name = before[1] if len(before) > 1 else ""
    if not name or (name == "help" and len(before) == 2):
        return NOTHING, _beginning(prefix, {**COMMANDS, **({"--help": "", "--version": ""} if not name else {})})
    if name not in COMMANDS:
        return NOTHING, {}
    parser, _ = parser_of(name)
    return _Typed(name, parser, before[2:]).complete(prefix)


class _Typed:
    """What was typed of a command's arguments: ``given`` by destination, and which argument the next word is."""

    def __init__(self, command: str, parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
        self.command = command
        self.given: dict[str, str] = {}
        self.value_of: argparse.Action | None = None
        self.only_values = False
        self._enter(parser)
        for word in words:
            self._take(word)

    def _enter(self, parser: argparse.ArgumentParser) -> None:
        actions = parser._actions  # noqa: SLF001 - argparse has no public list
        self.flags = {flag: action for action in actions for flag in action.option_strings}
        self.positionals = [action for action in actions if not action.option_strings]

    def _take(self, word: str) -> None:
        if self.value_of is not None:
            self.given[self.value_of.dest], self.value_of = word, None
        elif word == "--" and not self.only_values:
            self.only_values = True
        elif self._is_flag(word):
            flag, equals, value = word.partition("=")
            action = self.flags.get(flag)
            if action is not None:
                self.given[action.dest] = value
                self.value_of = action if action.nargs != 0 and not equals else None
        elif self.positionals:
            if len(self.positionals) > 1 and _is_inventory(self.positionals[0]) and not is_inventory(word):
                del self.positionals[0]
            action = self.positionals[0]
            self.given[action.dest] = word
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - likewise
                self._enter(action.choices.get(word) or Parser())
            elif action.nargs in {None, "?"}:
                del self.positionals[0]

    def _is_flag(self, word: str) -> bool:
        return len(word) > 1 and word.startswith("-") and not self.only_values

    def complete(self, prefix: str) -> tuple[str, Values]:
        if self.value_of is not None:
            return self._values(self.value_of, prefix)
        flag, equals, value = prefix.partition("=")
        if prefix.startswith("-") and not self.only_values:
            if not equals:
                return NOTHING, self._unused(prefix)
            return self._values(self.flags[flag], value) if flag in self.flags else (NOTHING, {})
        added, values = self._values(self.positionals[0], prefix) if self.positionals else (NOTHING, {})
        if len(self.positionals) > 1 and _is_inventory(self.positionals[0]):
            values |= self._values(self.positionals[1], prefix)[1]
        if not prefix and not values and added == NOTHING and not self.only_values:
            values = self._unused("-")
        return added, values

    def _unused(self, prefix: str) -> Values:
        repeated = argparse._AppendAction  # noqa: SLF001 - likewise
        flags = {
            flag: (action.help or "").replace("%%", "%")
            for flag, action in self.flags.items()
            if action.dest not in self.given or isinstance(action, repeated)
        }
        return _beginning(prefix, flags)

    def _values(self, action: argparse.Action, prefix: str) -> tuple[str, Values]:
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - likewise
            about = {choice.dest: choice.help or "" for choice in action._get_subactions()}  # noqa: SLF001 - likewise
            return NOTHING, _beginning(prefix, about)
        if action.choices is not None:
            return NOTHING, _beginning(prefix, dict.fromkeys(map(str, action.choices), ""))
        metavar = str(action.metavar)
        added, values = VALUES.get(f"{self.command} {metavar}") or VALUES.get(metavar) or (NOTHING, None)
        return added, _beginning(prefix, values(prefix, self.given) if values else {})


def _is_inventory(action: argparse.Action) -> bool:
    """Whether it is an INVENTORY that can be left out."""
    return action.metavar == "INVENTORY" and action.nargs == "?"


def _words(line: str) -> list[str]:
    """The words of a line without their quotes; the last one is empty after a space, and may lack its second quote."""
    for end in ("", '"', "'", "\\"):
        try:
            words = shlex.split(line + end)
        except ValueError:
            continue
        return [*words, ""] if not end and (not line or line[-1].isspace()) else words
    return [""]


def _beginning(prefix: str, values: Mapping[str, str]) -> Values:
    return {value: about for value, about in values.items() if value.startswith(prefix)}


def _playbooks(prefix: str, _: Mapping[str, str]) -> Values:
    """Names of the bundled playbooks; after a ``+`` those of the overlays. Read from the listing, which is quick."""
    files = sorted(line.split()[-1].removesuffix(".yaml") for line in _packaged("spec", "bundled.txt"))
    base, plus, _overlay = prefix.rpartition("+")
    if plus:
        return {f"{base}+{name.removeprefix('overlays/')}": "" for name in files if name.startswith("overlays/")}
    return dict.fromkeys((name for name in files if "/" not in name), "")


def _codes(prefix: str, _: Mapping[str, str]) -> Values:
    """Codes of the checks with their titles, written as the prefix is in upper or lower case."""
    pairs = (line.split("\t") for line in _packaged("checks", "codes.txt"))
    return {code.lower() if prefix[:1].islower() else code: title for code, title in pairs}


def _packaged(*names: str) -> list[str]:
    import sparkcluster

    with open(os.path.join(os.path.dirname(sparkcluster.__file__), *names), encoding="utf-8") as file:  # noqa: PTH118, PTH120, PTH123 - pathlib is slow to import
        return file.read().splitlines()


def _nodes(_: str, given: Mapping[str, str]) -> Values:
    """Nodes of the inventory on the line, or of the default one, with their addresses."""
    nodes = [node for node in _inventory(given).get("nodes") or [] if isinstance(node, dict) and node.get("host")]
    return {str(node.get("name") or node["host"]): str(node["host"]) if node.get("name") else "" for node in nodes}


def _groups(prefix: str, given: Mapping[str, str]) -> Values:
    """Groups of the inventory on the line, or of the default one; after a comma, another one."""
    base, comma, _group = prefix.rpartition(",")
    groups = [group for group in _inventory(given).get("groups") or [] if isinstance(group, dict)]
    return {f"{base}{comma}{group['name']}": "" for group in groups if group.get("name")}


def _inventory(given: Mapping[str, str]) -> dict[str, Any]:
    """The file as plain YAML, every scalar as text: what is wrong in it is for the command to say."""
    import yaml

    from sparkcluster.errors import UsageError

    try:
        path = os.path.expanduser(given["inventory"]) if "inventory" in given else str(default_inventory()[0])  # noqa: PTH111 - pathlib is slow to import
        with open(path, "rb") as file:  # noqa: PTH123 - likewise
            document = yaml.load(file.read(_MAX_BYTES), yaml.BaseLoader)  # noqa: S506 - it makes text, lists and dicts only
    except (OSError, ValueError, RecursionError, yaml.YAMLError, UsageError):
        return {}
    return document if isinstance(document, dict) else {}


def _steps(_: str, __: Mapping[str, str]) -> Values:
    from sparkcluster.setup.steps import STEPS

    return {step.name: step.title for step in STEPS}


def _faults(_: str, __: Mapping[str, str]) -> Values:
    from sparkcluster.lab.faults import FAULTS

    return dict.fromkeys(FAULTS, "")


def _clients(_: str, __: Mapping[str, str]) -> Values:
    from sparkcluster.endpoint.clients import CLIENTS

    return {name: client.title for name, client in CLIENTS.items()}


# By the metavar of an argument, if needed with its command: what the shell adds, and what gives the values.
VALUES: dict[str, tuple[str, Callable[[str, Mapping[str, str]], Values] | None]] = {
    "INVENTORY": (YAML, None),
    "INV": (YAML, None),
    "P": (YAML, _playbooks),
    "PLAYBOOK": (YAML, _playbooks),
    "NODE": (NOTHING, _nodes),
    "setup NAME": (NOTHING, _nodes),
    "connect NAME": (NOTHING, _clients),
    "playbooks NAME": (YAML, _playbooks),
    "G": (NOTHING, _groups),
    "GROUPS": (NOTHING, _groups),
    "CODE": (NOTHING, _codes),
    "STEP": (NOTHING, _steps),
    "KIND": (NOTHING, _faults),
    "FILE": (FILES, None),
    "lint FILE": (YAML, None),
    "discover FILE": (YAML, None),
    "OUT": (FILES, None),
    "PATH": (FILES, None),
    "KEY": (FILES, None),
    "K": (FILES, None),
}
