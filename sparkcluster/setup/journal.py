"""What ``setup`` changed on a node, by its journal: which entries can be its own, and whether they still hold."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import Literal

from sparkcluster.errors import SetupError
from sparkcluster.facts.base import read
from sparkcluster.facts.network import Interface
from sparkcluster.facts.survey import JournalEntry, Survey
from sparkcluster.printable import clean, hidden_at
from sparkcluster.setup.changes import AUTHORIZED_KEYS, DAEMON, HOSTS, PACKAGE, USER, members
from sparkcluster.setup.journal_text import described
from sparkcluster.setup.steps import BLOCK, BY_NAME, HEADLESS, LIMITS, SYSCTL, SYSCTLS
from sparkcluster.topology.netplan import NETPLAN, is_plain

State = Literal["as written", "as before", "changed since", "unknown"]

_FILES = {"sysctl": SYSCTL, "limits": LIMITS, "nvidia-runtime": DAEMON}
_DIRECTORIES = {"/etc/docker", "/etc/sysctl.d", "/etc/security", "/etc/security/limits.d"}
_DIGEST = re.compile(r"absent|[0-9a-f]{64}")
_SETTING = re.compile(r"vm\.(swappiness|dirty_bytes|dirty_ratio)=[0-9]{1,20}")
_LINK = re.compile(r"mtu=([0-9]{1,6}) mode=[0-3]")
_MTU = re.compile(r"mtu=([0-9]{1,6})")
_TARGET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_@.-]{0,63}\.target")


def _digests(entry: JournalEntry) -> bool:
    return bool(_DIGEST.fullmatch(entry.before) and _DIGEST.fullmatch(entry.after))


def _states(before: str, after: str) -> Callable[[JournalEntry], bool]:
    return lambda entry: (entry.before, entry.after) == (before, after)


def _is_path(text: str) -> bool:
    return text.startswith("/") and hidden_at(text, "") is None and ".." not in text.split("/")


def _is_address(target: str) -> bool:
    interface, _, address = target.partition(" ")
    with contextlib.suppress(ValueError):
        return is_plain(interface) and str(IPv4Interface(address)) == address
    return False


def _member(entry: JournalEntry) -> bool:
    group, _, user = entry.target.partition(":")
    return group == "docker" and bool(USER.fullmatch(user)) and _states("absent", "member")(entry)


_POSSIBLE: dict[str, tuple[set[str], Callable[[JournalEntry], bool]]] = {
    "file": (set(_FILES), lambda entry: entry.target == _FILES[entry.step] and _digests(entry)),
    "line": (
        {"ssh-key"},
        lambda entry: _is_path(entry.target) and entry.target.endswith(f"/{AUTHORIZED_KEYS}") and _digests(entry),
    ),
    "block": ({"hosts"}, lambda entry: entry.target == HOSTS and _digests(entry)),
    "netplan": ({"netplan"}, lambda entry: entry.target == NETPLAN and _digests(entry)),
    "directory": (
        {*_FILES, "ssh-key"},
        lambda entry: (
            _states("absent", "made")(entry)
            and _is_path(entry.target)
            and (entry.target in _DIRECTORIES if entry.root else entry.target.endswith("/.ssh"))
        ),
    ),
    "group": ({"docker-group"}, _member),
    "sysctl": (
        {"sysctl"},
        lambda entry: (
            entry.target in SYSCTLS
            and bool(_SETTING.fullmatch(entry.before) and _SETTING.fullmatch(entry.after))
            and entry.after.startswith(f"{entry.target}=")
        ),
    ),
    "address": (
        {"netplan"},
        lambda entry: _is_address(entry.target) and {entry.before, entry.after} == {"absent", "present"},
    ),
    "link": (
        {"netplan"},
        lambda entry: is_plain(entry.target) and bool(_LINK.fullmatch(entry.before) and _MTU.fullmatch(entry.after)),
    ),
    "owner": (
        {"hf-cache"},
        lambda entry: _is_path(entry.target) and bool(_DIGEST.fullmatch(entry.before) and USER.fullmatch(entry.after)),
    ),
    "package": (
        {"perftest"},
        lambda entry: bool(PACKAGE.fullmatch(entry.target)) and _states("absent", "installed")(entry),
    ),
    "hold": ({"hold"}, lambda entry: bool(PACKAGE.fullmatch(entry.target)) and _states("free", "held")(entry)),
    "target": (
        {"headless"},
        lambda entry: (
            entry.target == "default.target"
            and entry.after == HEADLESS
            and (entry.before == "absent" or bool(_TARGET.fullmatch(entry.before)))
        ),
    ),
    "ntp": ({"clock"}, lambda entry: entry.target == "clock" and _states("no", "yes")(entry)),
    "restart": ({"nvidia-runtime"}, lambda entry: entry.target == "docker" and _states("due", "done")(entry)),
}


def checked(node: str, journal: Iterable[JournalEntry]) -> list[JournalEntry]:
    """The entries, oldest first, of which each is one that ``setup`` could have written.

    Raises:
        SetupError: one is not: the journal was changed, or written by another version.
    """
    entries = sorted(journal, key=lambda entry: entry.number)
    for entry in entries:
        steps, possible = _POSSIBLE.get(entry.kind, (set(), lambda _: False))
        if entry.step not in steps or entry.root is not BY_NAME[entry.step].root or not possible(entry):
            what = clean(f"{entry.step}, {entry.kind}, {entry.target}", "")[:200]
            raise SetupError(
                f"entry {entry.number} of the journal is not one of setup: {what}",
                node=node,
                step="undo",
                hint=f"look at the journal on {node}; --only STEP undoes other steps",
            )
    return entries


@dataclass(frozen=True, slots=True)
class Row:
    """One change that is in the journal.

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
    entries = sorted(survey.journal, key=lambda entry: (entry.at, entry.number))
    return [
        Row(
            clean(entry.step, ""),
            clean(f"{entry.kind} {entry.target}", ""),
            described(entry),
            entry.at,
            clean(entry.operator, ""),
            _state(survey, entry),
        )
        for entry in entries
    ]


def _state(survey: Survey, entry: JournalEntry) -> State:
    read_now = _NOW.get(entry.kind)
    now = read_now(survey, entry) if read_now else None
    if now is None:
        return "unknown"
    if now == entry.after:
        return "as written"
    return "as before" if now == entry.before else "changed since"


# The state of an entry's target in the words of the journal, None where the survey does not tell.


def _file(survey: Survey, entry: JournalEntry) -> str | None:
    file = survey.files.get(entry.target)
    return None if file is None or file.unread else file.sha256 or "absent"


def _line(survey: Survey, entry: JournalEntry) -> str | None:
    now = _file(survey, entry)
    return now if now in {entry.before, entry.after} else None  # others edit it, too


def _block(survey: Survey, entry: JournalEntry) -> str | None:
    file = survey.files.get(entry.target)
    return entry.after if file and BLOCK[0] in (file.text or "") else _file(survey, entry)


def _group(survey: Survey, entry: JournalEntry) -> str | None:
    group, _, user = entry.target.partition(":")
    listed = members(survey, group)
    return None if listed is None else "member" if user in listed else "absent"


def _sysctl(survey: Survey, entry: JournalEntry) -> str | None:
    now = {f"{name}={value}" for name, value in survey.sysctls.items() if value is not None}
    return next((each for each in (entry.after, entry.before) if each in now), "another" if now else None)


def _interface(survey: Survey, name: str) -> Interface | None:
    return next((each for each in read(survey.interfaces) or () if each.name == name), None)


def _address(survey: Survey, entry: JournalEntry) -> str | None:
    name, _, address = entry.target.partition(" ")
    interface = _interface(survey, name)
    return None if interface is None else "present" if address in interface.addresses else "absent"


def _link(survey: Survey, entry: JournalEntry) -> str | None:
    interface = _interface(survey, entry.target)
    if interface is None:
        return None
    now = f"mtu={interface.mtu}"
    return entry.before if entry.before.startswith(f"{now} ") and now != entry.after else now


def _owner(survey: Survey, entry: JournalEntry) -> str | None:
    return None if entry.target != survey.hf_home else "others" if survey.foreign else entry.after


def _package(survey: Survey, entry: JournalEntry) -> str | None:
    return None if entry.target not in survey.packages else "installed" if survey.packages[entry.target] else "absent"


def _ntp(survey: Survey, _: JournalEntry) -> str | None:
    return None if survey.ntp is None else "yes" if survey.ntp else "no"


_NOW: dict[str, Callable[[Survey, JournalEntry], str | None]] = {
    "file": _file,
    "netplan": _file,
    "line": _line,
    "block": _block,
    "group": _group,
    "sysctl": _sysctl,
    "address": _address,
    "link": _link,
    "owner": _owner,
    "package": _package,
    "hold": lambda survey, entry: "held" if entry.target in survey.held else "free",
    "target": lambda survey, _: survey.default_target,
    "ntp": _ntp,
}
