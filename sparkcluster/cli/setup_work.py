"""What setting up, undoing and showing share: what is to be done, with which nodes, and what became of it."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sparkcluster.report import count

if TYPE_CHECKING:
    from sparkcluster.cli.progress import Shown
    from sparkcluster.cli.prompts import Terminal
    from sparkcluster.facts.survey import Survey
    from sparkcluster.hosts.base import Host
    from sparkcluster.hosts.fleet import Fleet
    from sparkcluster.setup.run import Outcome, Scripts
    from sparkcluster.spec.inventory import Inventory


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What is to be done.

    Attributes:
        path: of the inventory, as it was typed.
        action: set the nodes up, only say what that would change, undo it, or show what was changed.
        only: names of steps; empty for all that are no options.
        options: names of the options that are switched on.
        nodes: names of the nodes that may be changed; empty for all.
        yes: nothing is asked before it is changed.
        json: the result is one document.
        verbose: a dry run shows the scripts.
    """

    path: Path
    action: Literal["set up", "dry run", "undo", "show"] = "set up"
    only: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    yes: bool = False
    json: bool = False
    verbose: bool = False

    @property
    def inventory(self) -> str:
        """``path`` as a word of a command line."""
        return shlex.quote(str(self.path))


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """Whether all is well, the document of ``--json``, and what shows it to people instead."""

    ok: bool
    document: dict[str, Any]
    show: Callable[[], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """``options`` for the nodes of ``inventory``, and whom to tell and to ask meanwhile."""

    options: Options
    inventory: Inventory
    fleet: Fleet
    report: Shown
    terminal: Terminal

    def begin(self) -> None:
        """Report that the nodes are looked at."""
        self.report.step("look", f"at {', '.join(self.options.nodes) or count(len(self.inventory.nodes), 'node')}")

    def run(
        self, surveys: Mapping[str, Survey], texts: Mapping[str, Scripts], *, root_first: bool = False
    ) -> dict[str, Outcome]:
        """Run the scripts of all nodes; what became of each."""
        from sparkcluster.setup.run import run

        def password(host: Host, again: bool) -> str | None:
            return self.terminal.sudo_password(host.name, getattr(host, "target", None), again=again)

        self.report.step("change", ", ".join(node for node, text in texts.items() if text))
        return run(self.fleet, surveys, texts, self.report, password=password, root_first=root_first)


@contextlib.contextmanager
def interrupted(state: str) -> Iterator[None]:
    """Say on Ctrl-C in the block what ``state`` it leaves."""
    from sparkcluster.errors import Interrupted

    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {state}") from None


def is_asked() -> bool:
    """Whether somebody is there to answer questions."""
    import sys

    return sys.stdin is not None and sys.stdin.isatty()
