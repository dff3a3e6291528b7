"""Journal entries of ``setup``: their description, whether they still apply, and how to restore by hand. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from sparkcluster.facts.survey import FileState, JournalEntry, Survey
from sparkcluster.printable import shell
from sparkcluster.setup.script import folder

State = Literal["as written", "as before", "changed since", "unknown"]
_WORDS = {
    "file": "{target} written",
    "directory": "directory {target} created",
    "group": "{rest} added to the group {first}",
    "sysctl": "{after} (was {before})",
    "link": "{target}: MTU {after} (was {before})",
    "owner": "{target} given to {after}",
    "package": "package {target} installed",
    "hold": "package {target} held at its version",
    "target": "{target} is {after} (was {before})",
    "ntp": "clock synchronization switched on",
}


def describe(survey: Survey) -> list[dict[str, Any]]:
    """Changes that ``setup`` made and did not undo, oldest first, from the node's journals.

    ``what`` is kind and target, ``text`` the description, ``state`` whether a file is still as ``setup`` wrote it, if
    the survey could read it.
    """
    rows = []
    for entry in sorted(survey.journal, key=lambda each: (each.at, each.number)):
        file = survey.files.get(entry.target, FileState(unread="not read"))
        state: State = "unknown"
        if entry.kind == "file" and not file.unread:
            states: dict[str, State] = {entry.before: "as before", entry.after: "as written"}
            other: State = "unknown" if entry.step == "ssh-key" else "changed since"
            state = states.get(file.sha256 or "absent", other)
        about = {"step": entry.step, "what": f"{entry.kind} {entry.target}", "text": described(entry)}
        rows.append({**about, "at": entry.at, "operator": entry.operator, "state": state})
    return rows


def described(entry: JournalEntry) -> str:
    """One line that describes the change; kind and target if this version does not know the kind."""
    first, _, rest = entry.target.partition(":")
    before, after = entry.before.removeprefix(f"{entry.target}="), entry.after
    if entry.kind == "link":  # omit the IPv6 address mode between MTU and addresses
        before, after = (re.sub(r"^(\d+) \d", r"\1", state).strip() for state in (before, after))
    words = _WORDS.get(entry.kind, "{kind} {target}")
    return words.format(kind=entry.kind, target=entry.target, first=first, rest=rest, before=before, after=after)


def restoring(node: str, journal: Sequence[JournalEntry], left: str) -> tuple[str, ...]:
    """Commands for a change that an undo skipped: how to inspect it, and how to restore the saved state.

    Args:
        node: name of the node in the inventory.
        journal: entries of the node before the undo.
        left: ``TARGET: REASON``, as printed by the script.

    Returns:
        Empty if the journal has no such target.
    """
    entry = next((each for each in journal if left.startswith(f"{each.target}: ")), None)
    if entry is None:
        return ()
    saved = f"{folder(entry.root)}/saved/{entry.number}"
    if entry.kind != "file":
        return (f"on {node}: before setup it was {entry.before}",)
    if entry.before == "absent":
        look, back = shell("cat", entry.target), shell("rm", entry.target)
    else:
        look, back = shell("diff", saved, entry.target), shell("cp -p", saved, entry.target)
    there = f"on {node}: {'sudo ' * entry.root}"
    return (f"{there}{look}   shows it", f"keep it, or {there}{back}")
