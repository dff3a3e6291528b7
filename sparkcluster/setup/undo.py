"""The sh script that undoes what ``setup`` changed on a node, from the node's journal. Pure.

Each entry is undone only if its target is still as ``setup`` left it, and is then removed from the journal; what was
changed since is left, and named.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sparkcluster.facts.survey import JournalEntry
from sparkcluster.printable import clean
from sparkcluster.setup.actions import command
from sparkcluster.setup.journal import checked
from sparkcluster.setup.script import Run, assemble
from sparkcluster.setup.steps import STEPS, selected

# By kind: the function, and the files with it and with what it calls.
_FUNCTIONS = {
    "file": ("undo_file", ("file", "undo-file")),
    "line": ("undo_line", ("file", "undo-file", "undo-key")),
    "block": ("undo_block", ("file", "hosts", "undo-file", "undo-hosts")),
    "directory": ("undo_directory", ("file", "undo-file")),
    "group": ("undo_group", ("group", "undo-group")),
    "sysctl": ("undo_sysctl", ("sysctl", "undo-sysctl")),
    "owner": ("undo_owner", ("owner", "undo-owner")),
    "package": ("undo_package", ("package", "undo-package")),
    "hold": ("undo_hold", ("hold", "undo-hold")),
    "target": ("undo_target", ("target", "undo-target")),
    "ntp": ("undo_ntp", ("ntp", "undo-ntp")),
    "restart": ("undo_restart", ("ranks", "file", "undo-file", "undo-runtime")),
}
# What others change as well: every state of it that is in the journal is one of setup's or from before it.
_EDITED = ("file", "line", "block", "sysctl")
_NETPLAN_FILES = ("ranks", "file", "netplan", "undo-netplan")


def undo(run: Run, journal: Sequence[JournalEntry], only: Collection[str] | None = None) -> str:
    """The script that undoes the entries of the journal that ``run`` can undo; empty if there are none.

    Args:
        run: how it is run.
        journal: as the node reports it, root's and the login's.
        only: names of the steps to undo; None for all.

    Raises:
        SetupError: an entry is none that ``setup`` could have written.
        UsageError: a step is unknown.
    """
    wanted = {step.name for step in selected(only)} if only else None
    mine = [each for each in journal if each.root is run.root and (wanted is None or each.step in wanted)]
    entries = checked(run.node, mine)
    files: list[str] = ["undo"]
    bodies: dict[str, list[str]] = {}
    about = ["What it undoes, unless that was changed since:"]
    for step in STEPS:
        of_step = [each for each in reversed(entries) if each.step == step.name]
        if not of_step:
            continue
        network = step.name == "netplan"
        lines = _network(of_step) if network else [line for each in of_step for line in _one(each, entries)]
        bodies[step.name] = ["left=''", *lines, "undone"]
        files += _NETPLAN_FILES if network else [name for each in of_step for name in _function(each)[1]]
        about += [clean(f"  {each.step}: {each.kind} {each.target}") for each in of_step]
    return assemble(run, about, files, bodies, "undo: ") if bodies else ""


def _function(entry: JournalEntry) -> tuple[str, tuple[str, ...]]:
    if entry.kind == "file" and entry.step == "nvidia-runtime":
        return "undo_runtime", _FUNCTIONS["restart"][1]
    return _FUNCTIONS[entry.kind]


def _one(entry: JournalEntry, entries: Sequence[JournalEntry]) -> list[str]:
    words: list[Any] = [_function(entry)[0], entry.number, entry.kind, entry.target, entry.before, entry.after]
    if entry.kind == "package":
        words.append(" ".join(each.target for each in entries if each.kind == "package"))
    elif entry.kind in _EDITED:
        same = [each for each in entries if (each.kind, each.target) == (entry.kind, entry.target)]
        words.append(" ".join(dict.fromkeys(state for each in same for state in (each.before, each.after))))
    return [f"{line} || return 1" for line in command("undo", *map(str, words), call="take")]


def _network(entries: Sequence[JournalEntry]) -> list[str]:
    """One command for all entries, newest first: of each address and link only the oldest counts."""
    oldest = {(each.kind, each.target): each for each in entries}
    counting = [each for each in entries if each.kind == "netplan" or oldest[each.kind, each.target] is each]
    text = "".join(
        "\t".join((str(each.number), each.kind, each.target, each.before, each.after)) + "\n" for each in counting
    )
    first, *body = command("undo_netplan", *(str(each.number) for each in entries), text=text, call="take")
    return [f"{first} || return 1", *body]
