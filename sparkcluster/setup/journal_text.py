"""Entries of a node's journal in words, and what to type about one that an undo left. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from shlex import quote

from sparkcluster.facts.survey import JournalEntry
from sparkcluster.printable import clean
from sparkcluster.setup.changes import PACKAGE
from sparkcluster.setup.script import LOGIN_DIR, ROOT_DIR

_NEEDS = re.compile(rf"({PACKAGE.pattern}): ({PACKAGE.pattern}) needs it")


def described(entry: JournalEntry) -> str:
    """What was changed, in one line; of a kind that this version does not know, the kind and its target."""
    words = _WORDS.get(entry.kind)
    return clean(words(entry) if words else f"{entry.kind} {entry.target}", "")


def way_on(node: str, journal: Sequence[JournalEntry], left: str) -> tuple[str, ...]:
    """What to type about a change that an undo left: how to look at it, then how to discard it.

    Args:
        node: its name in the inventory.
        journal: that of the node, before the undo.
        left: ``TARGET: REASON``, as the script said it.

    Returns:
        Nothing if the journal has no such target.
    """
    needs = _NEEDS.fullmatch(left)
    if needs is not None:
        return (f"on {node}: sudo apt-get purge {quote(needs[3])}   if nothing else needs that", _AGAIN)
    about = (each for each in journal if left.startswith((f"{each.target}: ", f"the MTU of {each.target}: ")))
    entry = min(about, key=lambda each: each.number, default=None)  # the oldest has what was there before setup
    commands = _commands(entry) if entry is not None else None
    if commands is None:
        return ()
    look, discard = commands
    return (f"on {node}: {look}   shows it", f"keep it, or on {node}: {discard}", _AGAIN)


_AGAIN = "sparkcluster setup INVENTORY --undo"


def _commands(entry: JournalEntry) -> tuple[str, str] | None:
    """How to look at the target of an entry, and how to bring it back to what it was before."""
    sudo, path = "sudo " if entry.root else "", quote(entry.target)
    if entry.kind in {"file", "line", "block", "netplan"}:
        if entry.before == "absent":
            return f"{sudo}cat {path}", f"{sudo}rm {path}"
        saved = f"{ROOT_DIR if entry.root else LOGIN_DIR}/saved/{entry.number}"
        return f"{sudo}diff {saved} {path}", f"{sudo}cp -p {saved} {path}"
    if entry.kind == "sysctl":
        return f"sysctl {path}", f"sudo sysctl -w {quote(entry.before)}"
    if entry.kind == "link":
        return f"ip link show {path}", f"sudo ip link set {path} mtu {quote(_mtu(entry.before))}"
    if entry.kind == "target":
        target = "rm /etc/systemd/system/default.target"
        return (
            "systemctl get-default",
            f"sudo {target if entry.before == 'absent' else f'systemctl set-default {quote(entry.before)}'}",
        )
    return None


def _file(entry: JournalEntry) -> str:
    return f"{entry.target} {'created' if entry.before == 'absent' else 'changed'}"


def _sysctl(entry: JournalEntry) -> str:
    return f"{entry.after} (was {entry.before.removeprefix(f'{entry.target}=')})"


def _address(entry: JournalEntry) -> str:
    interface, _, address = entry.target.partition(" ")
    return f"{interface}: {address} {'added' if entry.after == 'present' else 'removed'}"


def _mtu(state: str) -> str:
    return state.partition(" ")[0].removeprefix("mtu=")


def _group(entry: JournalEntry) -> str:
    group, _, user = entry.target.partition(":")
    return f"{user} added to the group {group}"


_WORDS: dict[str, Callable[[JournalEntry], str]] = {
    "file": _file,
    "netplan": _file,
    "line": lambda entry: f"SSH key added to {entry.target}",
    "block": lambda entry: f"names of the rails added to {entry.target}",
    "directory": lambda entry: f"directory {entry.target} created",
    "group": _group,
    "sysctl": _sysctl,
    "address": _address,
    "link": lambda entry: f"{entry.target}: MTU {_mtu(entry.after)} (was {_mtu(entry.before)})",
    "owner": lambda entry: f"{entry.target} given to {entry.after}",
    "package": lambda entry: f"package {entry.target} installed",
    "hold": lambda entry: f"package {entry.target} held at its version",
    "target": lambda entry: f"{entry.target} is {entry.after} (was {entry.before})",
    "ntp": lambda _: "clock synchronization switched on",
    "restart": lambda _: "Docker is still to be restarted",
}
