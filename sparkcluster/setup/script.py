"""The sh scripts that set a node up and undo that, as they are printed, run by hand and run by ``setup``. Pure.

A line of output is ``STEP: text``. The last line of a step is ``done``, ``failed: REASON`` or, where it undoes,
``left TARGET: REASON``; ``confirm``, after ``CONFIRMED_ANEW``, asks the controller to connect anew and run ``CONFIRM``.
It exits with 0 when all is done, 1 when a step failed, 2 on another machine or as another user, 75 while another one
runs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkcluster import __version__
from sparkcluster.node.shared import LABEL_CLUSTER
from sparkcluster.setup.step import Change
from sparkcluster.setup.steps import BY_NAME, STEPS
from sparkcluster.topology.netplan import MTU, NETPLAN

Kind = Literal["text", "confirm", "done", "left", "failed"]

EXIT_BUSY = 75
PENDING = "/run/sparkcluster-setup"
CONFIRMED_ANEW = "CONFIRM=controller\n"
"""Before a script whose own look at the network is not enough."""
CONFIRM = f"""\
#!/bin/sh
# The controller reaches this node by its new network.
if ! [ -e {PENDING}/kept ] && ! mv {PENDING}/links {PENDING}/kept; then
  echo 'netplan: failed: nothing waits for a confirmation'
  exit 1
fi
"""
_SH = Path(__file__).with_name("steps")
_LINE = re.compile(r"([a-z-]{1,32}): (?:(failed|confirm): |(left) |(done)$)?(.*)")


@dataclass(frozen=True, slots=True)
class Run:
    """How a script is run.

    Attributes:
        node: name in the inventory.
        operator: who orders it, as user@machine.
        user: name of the login.
        root: whether root runs it, or the login.
        machine: SHA-256 of the node's /etc/machine-id; None not to look.
    """

    node: str
    operator: str
    user: str
    root: bool = True
    machine: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """A line of output: of which step, None outside of one; what it says."""

    step: str | None
    kind: Kind
    text: str


def folder(root: bool) -> str:
    """Where a node keeps the journal of root or of the login, and what was there before."""
    return "/var/lib/sparkcluster/setup" if root else "~/.local/state/sparkcluster/setup"


def script(run: Run, changes: Iterable[Change]) -> str:
    """The script for those of ``changes`` that ``run`` can make and that are not blocked; empty if there are none."""
    made = {each.step: each for each in changes if not each.blocked and BY_NAME[each.step].root is run.root}
    steps = [step.name for step in STEPS if step.name in made]
    return _assembled(
        run, {name: [*(line for each in made[name].commands for line in each), "say done"] for name in steps}
    )


def undo(run: Run, steps: Collection[str]) -> str:
    """The script that undoes what the journal of ``run`` has of ``steps``; empty where they are none of its steps.

    It reads the journal itself: root believes root's alone, and that of the login undoes what the login may change.
    """
    mine = [step.name for step in STEPS if step.name in steps and step.root is run.root]
    bodies = {name: ["act undo_netplan" if name == "netplan" else "undo_step"] for name in mine}
    return _assembled(run, bodies, undo=True)


def parse_line(line: str) -> Event:
    """What a line of output says."""
    line = line.rstrip("\r\n")
    found = _LINE.fullmatch(line)
    if found is None or found[1] not in BY_NAME:
        return Event(None, "text", line)
    return Event(found[1], found[2] or found[3] or found[4] or "text", found[5])  # type: ignore[arg-type]


def _assembled(run: Run, bodies: Mapping[str, Sequence[str]], *, undo: bool = False) -> str:
    """A whole script with a function for each step, or none; what an administrator reads is said before."""
    if not bodies:
        return ""
    top, below = ("/var/lib", "sparkcluster") if run.root else ("$HOME", ".local/state/sparkcluster")
    variables = {
        "RUN_AS": "root" if run.root else run.user,
        "MACHINE": run.machine or "",
        "OPERATOR": run.operator,
        "LABEL": LABEL_CLUSTER,
        "NETPLAN": NETPLAN,
        "MTU": str(MTU),
        "PENDING": PENDING,
    }
    by_hand = "sudo sh FILE" if run.root else f"sh FILE   (as {run.user})"
    lines = [
        "#!/bin/sh",
        f"# Made by sparkcluster {__version__} for node {run.node}, where it can be run by hand: {by_hand}",
        f"# What was there before is kept in {folder(run.root)}. It can be run again at any time.",
        "# sparkcluster setup INVENTORY --undo undoes it.",
        "set -u",
        *(f"{name}={shlex.quote(value)}" for name, value in variables.items()),
        f"TOP={top} BELOW={below}",
    ]
    for path in (_SH / f"{name}.sh" for name in ("common", *["undo"] * undo, *bodies)):
        lines += ["", *path.read_text().splitlines()] if path.exists() else []
    functions = {step: f"step_{step.replace('-', '_')}" for step in bodies}
    for step, body in bodies.items():
        title = shlex.join(["say", f"{'undo: ' if undo else ''}{BY_NAME[step].title}"])
        # Here-documents are not indented, so nothing is.
        lines += ["", f"# {BY_NAME[step].why}", f"{functions[step]}() {{", f"step={step}", title, *body, "}"]
    # All of it has been read before any of it runs: what arrives in part does nothing.
    calls = (f"  attempt {function}" for function in functions.values())
    lines += ["", "main() {", "  begin", *calls, "  end", "}", "", "main </dev/null"]
    return "\n".join(lines) + "\n"
