"""A step of ``setup``: compares a survey with the wanted state and builds shell commands for the difference. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface

from sparkcluster.facts.survey import FileState, Survey


@dataclass(frozen=True, slots=True)
class Wanted:
    """Wanted state of a node.

    Attributes:
        key: the operator's public key as a line of authorized_keys; empty if there is none.
            None: leave that file unchanged.
        netplan: text of the netplan file. None: leave the network unchanged.
        addresses: addresses with prefix in that text, by interface.
    """

    key: str | None = None
    netplan: str | None = None
    addresses: Mapping[str, IPv4Interface] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one step on one node.

    Attributes:
        found, wanted: present and wanted state, one line each.
        commands: made by ``command``; empty if blocked.
        later: when it takes effect, if not immediately.
        blocked: why the change cannot be made now.
        hint: command or advice that unblocks it.
        node, step: set by ``steps.changes``.
    """

    found: str
    wanted: str
    commands: tuple[list[str], ...] = ()
    later: str | None = None
    blocked: str | None = None
    hint: str | None = None
    node: str = ""
    step: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of ``setup``; its shell functions are in ``steps/NAME.sh``.

    Attributes:
        name: as in ``--only``.
        why: reason in one line, with its source.
        needed: returns the change to make, or None.
        root: whether root makes the change, or the login.
        option: whether the step runs only on request.
        disruptive: whether it disturbs running ranks.
        joint: whether it needs the surveys of all nodes.
    """

    name: str
    title: str
    why: str
    needed: Callable[[Survey, Wanted], Change | None]
    root: bool = True
    option: bool = False
    disruptive: bool = False
    joint: bool = False


def command(*words: str, text: str | None = None) -> list[str]:
    """Lines that call a shell function with ``text`` on standard input."""
    line = shlex.join(("act", *words))
    return [f"{line} || return 1"] if text is None else [f"{line} <<'END' || return 1", *text.splitlines(), "END"]


def write_file(path: str, text: str) -> list[str]:
    """The command that writes a file owned by root."""
    return command("write_file", path, text=text)


def is_written(survey: Survey, path: str, text: str) -> bool:
    """Whether the file has the text, mode and owner that ``write_file`` sets."""
    state = survey.files.get(path, FileState())
    return (state.text, state.mode, state.owner) == (text, 0o644, "root")


def described(survey: Survey, path: str) -> str:
    """State of a file that differs from the wanted one."""
    state = survey.files.get(path, FileState(unread="not read"))
    return f"{path} is {'unreadable' if state.unread else 'different' if state.sha256 else 'missing'}"


def without_docker(found: str, wanted: str) -> Change:
    """A change blocked by missing Docker."""
    return Change(found, wanted, blocked="Docker is not installed", hint="on NODE: sudo apt-get install -y docker.io")
