"""What ``setup`` does: look, ask, run the scripts of the nodes, look again; or undo or show what journals have."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sparkcluster import output_file
from sparkcluster.cli import setup_view as view
from sparkcluster.cli.output import message
from sparkcluster.cli.progress import Shown
from sparkcluster.cli.prompts import Terminal
from sparkcluster.errors import Interrupted, SetupError, UsageError
from sparkcluster.facts.survey import Survey
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.own_key import create, public_key
from sparkcluster.hosts.ssh import SshHost
from sparkcluster.setup import run as setup
from sparkcluster.setup.journal import describe
from sparkcluster.setup.steps import requests
from sparkcluster.setup.survey import Collected, survey
from sparkcluster.spec.inventory import Inventory

Found = setup.Look | Collected
Result = tuple[bool, Found, dict[str, dict[str, Any]], Callable[[], None]]
"""Whether all is well; what was found; what ``--json`` tells of each node; and what shows it to people instead."""


@dataclasses.dataclass(slots=True)
class Work:
    """The flags of ``setup`` for the nodes of ``inventory``, and whom to tell and to ask meanwhile."""

    args: argparse.Namespace
    inventory: Inventory
    fleet: Fleet
    report: Shown
    terminal: Terminal
    created: str | None = None

    @property
    def name(self) -> str:
        """The inventory as a word of a command line."""
        return shlex.quote(str(self.args.inventory))

    def set_up(self) -> Result:
        """Look, ask, run the scripts of what was accepted, and look again; with ``--dry-run`` only look.

        Raises:
            UsageError: nobody can be asked.
        """
        args = self.args
        found = self._look()
        if found.errors:
            first, *others = found.errors.values()
            first.others = tuple(others)
            raise first
        due = found.due
        texts = {node: setup.scripts(found, node, due) for node in found.surveys}
        if args.dry_run or not due:
            self._remove_scripts("setup", found)
            nodes = {node: view.planned(found, node, text) for node, text in texts.items()}
            ok = not found.troubles and not any(each.blocked for each in found.changes)
            return ok, found, nodes, partial(view.show_plan, found, texts, args, self.name)
        accepted = self._accepted(found)
        texts = {node: setup.scripts(found, node, accepted) for node in found.surveys}
        outcomes, files = self._run("setup", found.surveys, texts)
        after = self._look() if any(each.done for each in outcomes.values()) else found
        self._remove_scripts("setup", after)
        nodes = {
            node: view.planned(after, node, text) | view.outcome(outcomes.get(node, setup.Outcome()))
            for node, text in texts.items()
        }
        ok = all(each.ok for each in outcomes.values()) and not (after.errors or after.changes or after.troubles)
        return ok, after, nodes, partial(view.show_done, outcomes, files, found, after, self.name, ok=ok)

    def _look(self) -> setup.Look:
        args = self.args
        only = (*args.only, *args.options) if args.only else ()
        return setup.look(
            self.fleet, self.inventory, only=only, options=args.options, keys=self._key, changing=args.node
        )

    def _key(self, node: str) -> str | None:
        """The operator's public key for ``node``, if a password was typed to log in; one that is missing is created.

        None where no password was typed, empty where there is no key and none is to be made.
        """
        host = self.fleet[node]
        if not isinstance(host, SshHost) or not self.terminal.logged_in(host.target):
            return None
        found = public_key(host.name, host.target)
        if found is None and self.created is None:
            question = "you have no SSH key: create ~/.ssh/id_ed25519 without a passphrase?"
            wanted = not self.args.dry_run and (self.args.yes or self.terminal.confirm(question))
            self.created = create() if wanted else ""
        return found or self.created

    def _accepted(self, found: setup.Look) -> list[str]:
        """Names of the steps whose changes the operator wants."""
        due = found.due
        if not self.args.json:
            with self.report.paused():
                view.show_steps(found.changes, self.name, why=self.args.verbose)
        if self.args.yes:
            return list(due)
        changes = "this change" if len(due) == 1 else f"these {len(due)} changes"
        answer = self._ask(f"make {changes}? [Y/n{'/each' if len(due) > 1 else ''}] ")
        if answer in {"e", "each"}:
            return [step for step, nodes in due.items() if self._ask(f"{step} on {', '.join(nodes)}? [Y/n] ") in _YES]
        return list(due) if answer in _YES else []

    def _ask(self, question: str) -> str:
        answer = self.terminal.ask(question)
        if answer is None:
            shows = "--show" if self.args.undo else "--dry-run"
            hint = f"sparkcluster setup {self.name} {shows} shows what would be changed; --yes accepts it"
            raise UsageError("nothing was changed: no terminal to ask on", hint=hint)
        return answer.strip().lower()

    def undo(self) -> Result:
        """Undo what the journals of the nodes have; with ``--show`` only show it.

        Raises:
            UsageError: nobody can be asked, or the operator says no.
        """
        args = self.args
        found = survey(self.fleet, self.inventory.hf_home, args.node or None, requests())
        rows = {
            node: [row for row in describe(each) if not args.only or row["step"] in args.only]
            for node, each in found.surveys.items()
        }
        if args.show or not any(rows.values()):
            self._remove_scripts("undo", found)
            nodes = {node: {"journal": each} for node, each in rows.items()}
            return not found.errors, found, nodes, partial(view.show_journals, rows, found.errors)
        texts = {}
        for node, each in found.surveys.items():
            try:
                texts[node] = setup.undo_scripts(each, node, args.only)
            except SetupError as error:  # ranks on one node stop no other
                found.errors[node] = error
        if any(texts.values()) and not args.yes:
            if not args.json:
                with self.report.paused():
                    view.show_journals({node: rows[node] for node in texts}, {})
            if self._ask("undo these changes? [y/N] ") not in {"y", "yes"}:
                raise UsageError("nothing was undone", hint="answer y, or add --yes")
        outcomes, files = self._run("undo", found.surveys, texts)
        ok = all(each.ok for each in outcomes.values()) and not found.errors
        nodes = {node: view.outcome(each) for node, each in outcomes.items()}
        return ok, found, nodes, partial(view.show_undone, outcomes, files, found, self.name, ok=ok)

    def _run(
        self, kind: str, surveys: Mapping[str, Survey], texts: Mapping[str, setup.Scripts]
    ) -> tuple[dict[str, setup.Outcome], dict[str, Path]]:
        """Run the scripts of all nodes; what became of each, and the files that are to be run there by hand."""

        def password(host: Host, again: bool) -> str | None:
            return self.terminal.sudo_password(host.name, getattr(host, "target", None), again=again)

        if not any(texts.values()):
            return {}, {}
        self.report.step("change" if kind == "setup" else "undo", ", ".join(node for node in texts if texts[node]))
        try:
            first = kind == "undo"
            outcomes = setup.run(self.fleet, surveys, texts, self.report, password=password, root_first=first)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; run it again to continue") from None
        files = {node: Path(f"{kind}-{node}.sh") for node, outcome in outcomes.items() if outcome.by_hand}
        for node, path in files.items():
            try:
                _write(path, texts[node].root)
            except UsageError as error:
                error.node, outcomes[node].error = node, error
        return outcomes, files

    def _remove_scripts(self, kind: str, found: Found) -> None:
        """Remove scripts of ``_write`` for nodes on which nothing is left to do."""
        if self.args.only or self.args.dry_run or self.args.show:
            return
        changes = found.changes if isinstance(found, setup.Look) else ()
        left = {each.node for each in changes} | {
            n for n, each in found.surveys.items() if kind == "undo" and each.journal
        }
        for node in self.args.node or found.surveys:
            path = Path(f"{kind}-{node}.sh")
            with contextlib.suppress(OSError, ValueError):
                if node not in left and f" for node {node}, where it " in path.read_text():
                    path.unlink()
                    message(f"removed {path}: all that it does is done")


def _write(path: Path, script: str) -> None:
    """Write a script that somebody has to run by hand, which confirms the network itself."""
    if path.is_symlink() or (path.exists() and path.stat().st_uid != os.geteuid()):
        raise UsageError(f"{path} exists, and is not a file of yours", hint="run this in another directory")
    text = script.replace("\nCONFIRM=controller\n", "\nCONFIRM=self\n")
    output_file.write(path, lambda file: file.write(text.encode()), private=True)


_YES = {"", "y", "yes"}
