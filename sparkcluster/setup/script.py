"""The sh script that brings a node to what is wanted, as it is printed, run by hand and run by ``setup``. Pure.

A line of its output is ``STEP: text``. The last line of a step is ``done``, ``failed: REASON`` or, where it undoes,
``left TARGET: REASON``; ``confirm: TOKEN`` asks the controller to connect anew and run ``confirm_script``. It exits
with 0 when all is done, 1 when a step failed, 2 on another machine or as another user, 75 while another one runs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkcluster import __version__
from sparkcluster.errors import SetupError
from sparkcluster.node.shared import LABEL_CLUSTER
from sparkcluster.printable import clean
from sparkcluster.setup.changes import USER, Change
from sparkcluster.setup.steps import BLOCK, BY_NAME, STEPS
from sparkcluster.topology.netplan import MTU, NETPLAN

Confirm = Literal["self", "controller"]
Kind = Literal["text", "confirm", "done", "left", "failed"]

ROOT_DIR = "/var/lib/sparkcluster/setup"
LOGIN_DIR = "~/.local/state/sparkcluster/setup"
EXIT_BUSY = 75
PENDING = "/run/sparkcluster"
_SH = Path(__file__).with_name("sh")
_TOKEN = re.compile(r"[0-9]{1,12}-[0-9]{1,10}")
_LINE = re.compile(r"([a-z-]{1,32}): (.*)")
_KINDS: tuple[tuple[str, Kind], ...] = (("failed: ", "failed"), ("left ", "left"), ("confirm: ", "confirm"))


@dataclass(frozen=True, slots=True)
class Run:
    """How a script is run.

    Attributes:
        node: name in the inventory.
        operator: who orders it, as user@machine.
        user: name of the login.
        root: whether root runs it, or the login.
        machine: SHA-256 of the node's /etc/machine-id; None not to look.
        confirm: what confirms the network: the script's own look at it, or the controller as well.
        confirm_s: seconds until an unconfirmed network is taken back.
    """

    node: str
    operator: str
    user: str
    root: bool = True
    machine: str | None = None
    confirm: Confirm = "self"
    confirm_s: int = 60


@dataclass(frozen=True, slots=True)
class Event:
    """A line of output: of which step, None outside of one; what it says."""

    step: str | None
    kind: Kind
    text: str


def script(run: Run, changes: Iterable[Change]) -> str:
    """The script for those of ``changes`` that ``run`` can make and that are not blocked; empty if there are none.

    Raises:
        SetupError: a change has a word that sh could not take.
    """
    made = [each for each in changes if not each.blocked and BY_NAME[each.step].root is run.root]
    if not made:
        return ""
    bodies = {}
    for each in sorted(made, key=lambda change: STEPS.index(BY_NAME[change.step])):
        commands = [action.lines() for action in each.actions]
        if each.later:
            commands.append([f"say {shlex.quote(f'takes effect {each.later}')}"])
        bodies[each.step] = _chained([*commands, ["say done"]])
    files = [name for each in made for action in each.actions for name in action.files]
    about = [
        f"What it changes; what was there before is kept in {ROOT_DIR if run.root else LOGIN_DIR}:",
        *(f"  {each.step}: {clean(each.wanted)}" for each in made),
        "It can be run again at any time. sparkcluster setup INVENTORY --undo undoes it.",
    ]
    return assemble(run, about, files, bodies)


def confirm_script(token: str) -> str:
    """The script that confirms the network, for root; ``token`` is from a ``confirm`` event.

    Raises:
        SetupError: the node sent something else.
    """
    if not _TOKEN.fullmatch(token):
        raise SetupError(f"{token!r} is no token", step="netplan")
    mark = shlex.quote(f"{PENDING}/{token}")
    return f"""\
#!/bin/sh
# The controller reaches this node by its new network.
if [ ! -e {mark} ]; then
  echo 'netplan: failed: nothing waits for a confirmation'
  exit 1
fi
: >{mark}.confirmed
"""


def parse_line(line: str) -> Event:
    """What a line of output says, without what controls a terminal."""
    line = clean(line.rstrip("\r\n"))
    found = _LINE.fullmatch(line)
    if found is None or found[1] not in BY_NAME:
        return Event(None, "text", line)
    step, text = found[1], found[2]
    if text == "done":
        return Event(step, "done", "")
    for prefix, kind in _KINDS:
        if text.startswith(prefix):
            return Event(step, kind, text.removeprefix(prefix))
    return Event(step, "text", text)


# ------------------------------------------------------------------------------------------------ parts of a script


def _chained(commands: Sequence[Sequence[str]]) -> list[str]:
    """Commands with their here-documents, each of which is run if the one before succeeded."""
    lines = []
    for number, (first, *body) in enumerate(commands, 1):
        lines += [f"{'  ' * (number > 1)}{first}{' &&' * (number < len(commands))}", *body]
    return lines


def assemble(
    run: Run, about: Sequence[str], files: Iterable[str], bodies: Mapping[str, Sequence[str]], prefix: str = ""
) -> str:
    """A whole script.

    Args:
        run: how it is run.
        about: lines of its header.
        files: names of files in ``sh/``, beside the common one.
        bodies: commands by step, in order. The first line of each here-document is one of them, the others are not
            indented.
        prefix: of the title of each step.

    Raises:
        SetupError: the login is no name of a user.
    """
    if not USER.fullmatch(run.user):
        raise SetupError(f"{run.user!r} is not the name of a user", node=run.node, step="setup")
    used = list(dict.fromkeys(["common", *files]))
    by_hand = "sudo sh FILE" if run.root else f"sh FILE   (as {run.user})"
    lines = [
        "#!/bin/sh",
        f"# Made by sparkcluster {__version__} for node {clean(run.node)}, where it can be run by hand: {by_hand}",
        *(f"# {line}" for line in about),
        "set -u",
        *_variables(run, used),
    ]
    for name in used:
        lines += ["", *(_SH / f"{name}.sh").read_text().splitlines()]
    for step, body in bodies.items():
        why = BY_NAME[step].why
        opening = [
            f"# {why}",
            f"{_function(step)}() {{",
            f"  step={step}",
            f"  say {shlex.quote(prefix + BY_NAME[step].title)}",
        ]
        lines += ["", *opening, *_indented(body), "}"]
    # All of it has been read before any of it runs: what arrives in part does nothing.
    lines += [
        "",
        "main() {",
        "  begin",
        *(f"  attempt {_function(step)}" for step in bodies),
        "  end",
        "}",
        "",
        "main </dev/null",
    ]
    return "\n".join(lines) + "\n"


def _function(step: str) -> str:
    return f"step_{step.replace('-', '_')}"


def _variables(run: Run, used: Sequence[str]) -> list[str]:
    values: dict[str, str] = {
        "RUN_AS": "root" if run.root else run.user,
        "MACHINE": run.machine or "",
        "OPERATOR": clean(run.operator, "")[:128],
    }
    if "ranks" in used:
        values["LABEL"] = LABEL_CLUSTER
    if "hosts" in used:
        values |= {"BEGIN": BLOCK[0], "END": BLOCK[1]}
    if "netplan" in used:
        values |= {"NETPLAN": NETPLAN, "PENDING": PENDING, "MTU": str(MTU)}
        values |= {"CONFIRM": run.confirm, "CONFIRM_S": str(run.confirm_s)}
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    top, below = ("/var/lib", ROOT_DIR) if run.root else ("$HOME", LOGIN_DIR.replace("~", "$HOME"))
    return [*lines, f"TOP={top} dir={below}"]


def _indented(body: Sequence[str]) -> list[str]:
    """Commands are indented, here-documents are not."""
    lines, end = [], None
    for line in body:
        lines.append(line if end else f"  {line}")
        if end == line:
            end = None
        elif end is None:
            begun = re.search(r"<<'(END_*)'", line)
            end = begun[1] if begun else None
    return lines
