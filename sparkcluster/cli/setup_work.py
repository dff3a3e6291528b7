"""The work of ``setup``: inspect, ask, run the scripts of the nodes, inspect again; or undo or show the journals."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

from sparkcluster import output_file
from sparkcluster.cli import setup_view as view
from sparkcluster.cli.progress import Shown
from sparkcluster.cli.prompts import Terminal
from sparkcluster.errors import Interrupted, SetupError, UsageError
from sparkcluster.facts.survey import Survey
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet, combined
from sparkcluster.hosts.own_key import create, public_key
from sparkcluster.hosts.ssh import SshHost
from sparkcluster.setup import run as setup
from sparkcluster.setup.journal import describe
from sparkcluster.setup.steps import REQUESTS
from sparkcluster.setup.survey import Collected, survey
from sparkcluster.spec.inventory import Inventory

Found = setup.Assessment | Collected
Result = tuple[bool, Found, dict[str, dict[str, Any]], Callable[[], None]]
"""Whether all is well; the findings; what ``--json`` says about each node; and the function that shows it to people."""


@dataclasses.dataclass(slots=True)
class Work:
    """One run of ``setup``: its flags, the nodes of ``inventory``, and where to report and ask."""

    args: argparse.Namespace
    inventory: Inventory
    fleet: Fleet
    report: Shown
    terminal: Terminal
    created: str | None = None

    def set_up(self) -> Result:
        """Inspect, ask, run the accepted scripts, and inspect again; with ``--dry-run`` only inspect.

        Raises:
            UsageError: there is no terminal to ask on.
        """
        args = self.args
        found = self._look()
        if found.errors:
            raise combined(found.errors.values())
        due = found.due
        texts = {node: setup.scripts(found, node, due) for node in found.surveys}
        if args.dry_run or not due:
            nodes = {node: view.planned(found, node, text) for node, text in texts.items()}
            ok = not found.troubles and not any(each.blocked for each in found.changes)
            return ok, found, nodes, partial(view.show_plan, found, texts, args)
        accepted = self._accepted(found)
        texts = {node: setup.scripts(found, node, accepted) for node in found.surveys}
        outcomes = self._run("setup", found.surveys, texts)
        after = self._look() if any(each.done for each in outcomes.values()) else found
        nodes = {
            node: view.planned(after, node, text) | view.outcome(outcomes.get(node, setup.Outcome()))
            for node, text in texts.items()
        }
        ok = all(each.ok for each in outcomes.values()) and not (after.errors or after.changes or after.troubles)
        return ok, after, nodes, partial(view.show_done, outcomes, found, after, ok=ok)

    def _look(self) -> setup.Assessment:
        only, options, changing = self.args.only, self.args.options, self.args.node
        return setup.assess(self.fleet, self.inventory, only=only, options=options, keys=self._key, changing=changing)

    def _key(self, node: str) -> str | None:
        """The operator's public key for ``node``, created if it is missing.

        None if no password was typed to log in; empty if there is no key and none is to be created.
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

    def _accepted(self, found: setup.Assessment) -> list[str]:
        """Names of the steps that the operator accepts."""
        due = found.due
        changes = "this change? [Y/n] " if len(due) == 1 else f"these {len(due)} changes? [Y/n/each] "
        answer = self._ask(f"make {changes}", partial(view.show_steps, found.changes, why=self.args.verbose))
        if answer in {"e", "each"}:
            return [step for step, nodes in due.items() if self._ask(f"{step} on {', '.join(nodes)}? [Y/n] ") in _YES]
        return list(due) if answer in _YES else []

    def _ask(self, question: str, show: Callable[[], None] = lambda: None) -> str:
        """The answer to a question about what ``show`` shows, in lower case; with ``--yes`` it is yes."""
        if not self.args.json:
            with self.report.paused():
                show()
        answer = "yes" if self.args.yes else self.terminal.ask(question)
        if answer is None:
            shows = "--show" if self.args.undo else "--dry-run"
            hint = f"sparkcluster setup INVENTORY {shows} shows the changes; --yes accepts it"
            raise UsageError("nothing was changed: no terminal to ask on", hint=hint)
        return answer.strip().lower()

    def undo(self) -> Result:
        """Undo the changes in the nodes' journals; with ``--show`` only show them.

        Raises:
            UsageError: there is no terminal to ask on, or the operator says no.
        """
        args = self.args
        found = survey(self.fleet, self.inventory.hf_home, args.node or None, REQUESTS)
        rows = {
            node: [row for row in describe(each) if not args.only or row["step"] in args.only]
            for node, each in found.surveys.items()
        }
        if args.show or not any(rows.values()):
            nodes = {node: {"journal": each} for node, each in rows.items()}
            return not found.errors, found, nodes, partial(view.show_journals, rows, found.errors)
        texts = {}
        for node, each in found.surveys.items():
            try:
                texts[node] = setup.undo_scripts(each, node, args.only)
            except SetupError as error:  # ranks on one node do not stop the others
                found.errors[node] = error
        shown = partial(view.show_journals, {node: rows[node] for node in texts}, {})
        if any(map(any, texts.values())) and self._ask("undo these changes? [y/N] ", shown) not in {"y", "yes"}:
            raise UsageError("nothing was undone", hint="answer y, or add --yes")
        outcomes = self._run("undo", found.surveys, texts)
        ok = all(each.ok for each in outcomes.values()) and not found.errors
        nodes = {node: view.outcome(each) for node, each in outcomes.items()}
        return ok, found, nodes, partial(view.show_undone, outcomes, found, ok=ok)

    def _run(
        self, kind: str, surveys: Mapping[str, Survey], texts: Mapping[str, setup.Scripts]
    ) -> dict[str, setup.Outcome]:
        """Run the scripts of all nodes; write those that must be run by hand to files. Returns the outcomes."""

        def password(host: Host, again: bool) -> str | None:
            return self.terminal.sudo_password(host.name, getattr(host, "target", None), again=again)

        names = [node for node, text in texts.items() if any(text)]
        if not names:
            return {}
        self.report.step("change" if kind == "setup" else "undo", ", ".join(names))
        try:
            first = kind == "undo"
            outcomes = setup.run(self.fleet, surveys, texts, self.report, password=password, root_first=first)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; run it again to continue") from None
        for node in (node for node, outcome in outcomes.items() if outcome.by_hand):
            try:
                fill = methodcaller("write", texts[node].root.encode())
                output_file.write(Path(f"{kind}-{node}.sh"), fill, private=True)
            except UsageError as error:
                outcomes[node].error = error
        return outcomes


_YES = {"", "y", "yes"}
