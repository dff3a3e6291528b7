"""What a step of ``setup`` is: how it looks at a survey, and the lines of sh that change what differs. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface

from sparkcluster.facts.survey import FileState, Survey


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a node is to be like.

    Attributes:
        key: the operator's public key, a line of authorized_keys; empty if there is none, None to leave that file.
        netplan: text of the netplan file; None to leave the network.
        addresses: what that text gives, with prefix, by interface.
    """

    key: str | None = None
    netplan: str | None = None
    addresses: Mapping[str, IPv4Interface] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """What one step would change on one node.

    Attributes:
        found, wanted: one line each.
        commands: what ``command`` makes; none where it is blocked.
        later: when it takes effect, if not at once.
        blocked: why it cannot be done now.
        hint: what to type about that.
        node, step: added by ``steps.changes``.
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
    """One thing that ``setup`` sees to; functions that its commands call are in ``steps/NAME.sh``.

    Attributes:
        name: as in ``--only``.
        why: one line, with the source of what is not obvious.
        look: what it would change; None where all is as wanted.
        root: whether root does it, or the login itself.
        option: whether it is done only on request.
        disruptive: whether it disturbs ranks that run.
        joint: whether what it does on one node follows from all nodes.
    """

    name: str
    title: str
    why: str
    look: Callable[[Survey, Wanted], Change | None]
    root: bool = True
    option: bool = False
    disruptive: bool = False
    joint: bool = False


def command(*words: str, text: str | None = None) -> list[str]:
    """Lines that call a function of sh, which reads ``text``, with a line end at its end."""
    line = shlex.join(("act", *words))
    return [f"{line} || return 1"] if text is None else [f"{line} <<'END' || return 1", *text.splitlines(), "END"]


def write_file(path: str, text: str) -> list[str]:
    """The command that writes a file of root's."""
    return command("write_file", path, text=text)


def is_written(survey: Survey, path: str, text: str) -> bool:
    """Whether a file of root's is as ``write_file`` makes it."""
    state = survey.files.get(path, FileState())
    return (state.text, state.mode, state.owner) == (text, 0o644, "root")


def described(survey: Survey, path: str) -> str:
    """How a file is that is not as wanted."""
    state = survey.files.get(path, FileState(unread="not read"))
    return f"{path} is {'unknown' if state.unread else 'another' if state.sha256 else 'missing'}"


def without_docker(found: str, wanted: str) -> Change:
    """What blocks a step that needs Docker."""
    return Change(found, wanted, blocked="Docker is not installed", hint="on NODE: sudo apt-get install -y docker.io")
