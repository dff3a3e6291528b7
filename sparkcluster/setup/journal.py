"""What ``setup`` changed on a node, by its journals: in words, whether it still holds, and how to restore it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Literal

from sparkcluster.facts.base import read
from sparkcluster.facts.survey import JournalEntry, Survey
from sparkcluster.printable import clean
from sparkcluster.setup.script import folder
from sparkcluster.setup.steps.docker_group import members

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
    "restart": "Docker is still to be restarted",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One change that is in a journal.

    Attributes:
        what: kind and target.
        text: what was changed, in words.
        at: seconds since 1970 by the node's clock.
        state: whether it is as ``setup`` left it, as far as the survey tells.
    """

    step: str
    what: str
    text: str
    at: float
    operator: str
    state: State


def describe(survey: Survey) -> list[Row]:
    """What ``setup`` changed and did not undo, oldest first, as a node says."""
    now = _now(survey)
    rows = []
    for entry in sorted(survey.journal, key=lambda each: (each.at, each.number)):
        target = entry.target.partition(" ")[0] if entry.kind == "package" else entry.target
        current = now.get(f"{entry.kind} {target}")
        states: dict[str | None, State] = {None: "unknown", entry.before: "as before", entry.after: "as written"}
        # Others edit files with lines of setup; of links and targets the survey does not tell all.
        partly = entry.kind in {"link", "target"} or entry.step in {"ssh-key", "hosts"}
        other: State = "unknown" if partly else "changed since"
        state = states.get(current, other)
        rows.append(
            Row(
                clean(entry.step, ""),
                clean(f"{entry.kind} {entry.target}", ""),
                clean(described(entry), ""),
                entry.at,
                clean(entry.operator, ""),
                state,
            )
        )
    return rows


def described(entry: JournalEntry) -> str:
    """What was changed, in one line; of a kind that this version does not know, the kind and its target."""
    first, _, rest = entry.target.partition(":")
    before, after = entry.before.removeprefix(f"{entry.target}="), entry.after
    if entry.kind == "link":  # without the mode of IPv6 addresses, which stands between MTU and addresses
        before, after = (re.sub(r"^(\d+) \d", r"\1", state).strip() for state in (before, after))
    words = _WORDS.get(entry.kind, "{kind} {target}")
    return words.format(kind=entry.kind, target=entry.target, first=first, rest=rest, before=before, after=after)


def _now(survey: Survey) -> dict[str, str]:
    """The states that the survey tells, by kind and target, in the words of the journal."""
    found = {f"file {path}": file.sha256 or "absent" for path, file in survey.files.items() if not file.unread}
    found |= {f"sysctl {name}": f"{name}={value}" for name, value in survey.sysctls.items() if value is not None}
    if survey.sysctls.get("vm.dirty_bytes") == "0":  # of these two the kernel clears the one that is not set
        found["sysctl vm.dirty_bytes"] = f"vm.dirty_ratio={survey.sysctls.get('vm.dirty_ratio')}"
    found |= {f"package {name}": "installed" if version else "absent" for name, version in survey.packages.items()}
    found |= {f"hold {name}": "hold" for name in survey.held}
    found |= {f"group docker:{user}": "member" for user in members(survey, "docker")}
    found.setdefault(f"group docker:{survey.user}", "absent")
    for link in read(survey.interfaces) or ():
        found[f"link {link.name}"] = f"{link.mtu} 1 {' '.join(str(each) for each in link.ipv4())}"
    if survey.default_target:
        found["target default.target"] = survey.default_target
    if survey.ntp is not None:
        found["ntp clock"] = "yes" if survey.ntp else "no"
    return found


def restoring(node: str, journal: Sequence[JournalEntry], left: str) -> tuple[str, ...]:
    """What to type about a change that an undo left: how to look at it, and how to restore what was there before.

    Args:
        node: its name in the inventory.
        journal: that of the node, before the undo.
        left: ``TARGET: REASON``, as the script said it.

    Returns:
        Nothing where the journal has no such target.
    """
    entry = next((each for each in journal if left.startswith(f"{each.target}: ")), None)
    if entry is None:
        return ()
    sudo, path = "sudo " if entry.root else "", quote(entry.target)
    saved = f"{folder(entry.root)}/saved/{entry.number}"
    if entry.kind != "file":
        return (f"on {node}: before setup it was {clean(entry.before, '')}",)
    if entry.before == "absent":
        return (f"on {node}: {sudo}cat {path}   shows it", f"keep it, or on {node}: {sudo}rm {path}")
    return (f"on {node}: {sudo}diff {saved} {path}   shows it", f"keep it, or on {node}: {sudo}cp -p {saved} {path}")
