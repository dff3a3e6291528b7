"""``sparkcluster setup``."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import stat
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sparkcluster.cli.common import common_flags, connect_fleet, emitted, inventory_argument, load_spec

if TYPE_CHECKING:
    from sparkcluster.cli.progress import Shown
    from sparkcluster.cli.prompts import Terminal
    from sparkcluster.hosts.base import Host
    from sparkcluster.hosts.fleet import Fleet
    from sparkcluster.setup.run import Look, Outcome, Scripts
    from sparkcluster.setup.survey import Collected
    from sparkcluster.spec.inventory import Inventory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``setup``."""
    inventory_argument(parser, playbook=False)
    parser.add_argument(
        "--only", metavar="STEP", action="append", default=[], help="do (or undo) only this step; again for another"
    )
    parser.add_argument(
        "--with",
        dest="options",
        metavar="STEP",
        action="append",
        default=[],
        help="also do this step, which is done on request only: headless, hold",
    )
    parser.add_argument(
        "--node", metavar="NAME", action="append", default=[], help="change only this node; again for another"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="show what would be changed, and with -v by which script")
    what.add_argument("--undo", action="store_true", help="take back what setup changed")
    what.add_argument("--show", action="store_true", help="show what setup changed, when, and by whose order")
    parser.add_argument("--yes", action="store_true", help="make every change without being asked")
    common_flags(parser, "--verbose")


def run(args: argparse.Namespace) -> int:
    """Set up every node of the inventory, undo that, or show it."""
    inventory = _checked(args)
    return on_nodes(args, inventory, only=[*args.only, *args.options] if args.only else [])


def on_nodes(args: argparse.Namespace, inventory: Inventory, *, only: Collection[str]) -> int:
    """Do the steps ``only``, or all that are no options; the exit code. For ``preflight --fix`` as well."""
    from sparkcluster.cli.progress import reporter
    from sparkcluster.cli.prompts import Terminal

    with (
        reporter(as_json=args.json, json_lines=False) as report,
        Terminal(report, silent=args.json) as terminal,
        connect_fleet(inventory, terminal) as fleet,
    ):
        if getattr(args, "show", False) or getattr(args, "undo", False):
            return _journals(args, inventory, fleet, report, terminal)
        return _set_up(args, inventory, fleet, report, terminal, only=only)


def _checked(args: argparse.Namespace) -> Inventory:
    """The inventory; raises UsageError for a step or node that there is not."""
    from sparkcluster.errors import UsageError
    from sparkcluster.setup.steps import selected
    from sparkcluster.suggest import did_you_mean

    selected(args.only, args.options)
    if args.options and (args.undo or args.show):
        raise UsageError("--with is for what is to be done", hint="--undo takes back all steps, or those of --only")
    inventory = load_spec(args).inventory
    names = [node.label for node in inventory.nodes]
    for name in args.node:
        if name not in names:
            hint = did_you_mean(name, names, f"nodes of {args.inventory}: {', '.join(names)}")
            raise UsageError(f"{name} is not a node of {args.inventory}", hint=hint)
    return inventory


# --------------------------------------------------------------------------------------------------- set up


def _set_up(
    args: argparse.Namespace,
    inventory: Inventory,
    fleet: Fleet,
    report: Shown,
    terminal: Terminal,
    *,
    only: Collection[str],
) -> int:
    from sparkcluster.cli import setup_view
    from sparkcluster.setup import run as setup

    keys: dict[str, str | None] = {}

    def key(node: str) -> str | None:
        if node not in keys:
            keys[node] = _key(fleet[node], terminal, report, yes=args.yes)
        return keys[node]

    def look() -> Look:
        return setup.look(
            fleet,
            inventory,
            only=only,
            options=getattr(args, "options", ()),
            keys=key,
            changing=getattr(args, "node", ()),
        )

    report.step("look", f"at {len(inventory.nodes)} nodes")
    found = look()
    if found.errors:
        raise _unreached(found.errors)
    name = shlex.quote(str(args.inventory))
    planned = {node: setup.scripts(found, node, {each.step for each in found.changes}) for node in found.surveys}
    dry_run = getattr(args, "dry_run", False)
    if dry_run or not any(planned.values()):
        if not emitted(args, setup_view.document(inventory.cluster, found, planned)):
            setup_view.show_plan(found, name)
            if args.verbose:
                setup_view.show_scripts(planned)
            setup_view.show_end(found, name, dry_run=dry_run)
        return 1 if setup_view.problems(found) else 0
    with _interrupted("nothing was changed"):
        steps = _accepted(args, found, report, name)
    texts = {node: setup.scripts(found, node, steps) for node in found.surveys}
    whole = not only and not getattr(args, "node", ())
    with _interrupted(f"what was done stays: run sparkcluster setup {name} again"):
        outcomes = _run(fleet, found.surveys, texts, report, terminal) if steps else {}
    by_hand = _keep_scripts(outcomes, {n: setup.scripts(found, n, steps, confirm="self").root for n in outcomes})
    # What was done is looked at again.
    done = setup_view.done_steps(outcomes)
    after = look() if done else found
    unchanged = [each for each in after.changes if (each.node, each.step) in done]
    document = setup_view.document(inventory.cluster, after, texts, outcomes)
    if not emitted(args, document):
        setup_view.show_outcomes(
            outcomes, by_hand, found, unchanged=unchanged, accepted=steps, whole=whole, inventory=name
        )
    good = (
        all(each.ok for each in outcomes.values()) and not unchanged and steps == {each.step for each in found.changes}
    )
    return 0 if good and not setup_view.problems(after) else 1


def _accepted(args: argparse.Namespace, found: Look, report: Shown, inventory: str) -> set[str]:
    """Names of the steps whose changes the operator wants; raises UsageError where nobody can be asked."""
    from sparkcluster.cli import setup_view
    from sparkcluster.errors import UsageError

    steps = [step for step in setup_view.steps(found) if any(not each.blocked for each in step.changes)]
    if args.yes:
        if not args.json:
            setup_view.show_plan(found, inventory)
        return {each.step.name for each in steps}
    if args.json or not _is_asked():
        raise UsageError(
            f"setup would change {', '.join(each.step.name for each in steps)}, and nobody can be asked",
            hint=f"sparkcluster setup {inventory} --dry-run shows it; --yes makes every change",
        )
    accepted = set()
    for each in steps:
        lines = setup_view.lines(each)
        nodes = ", ".join(change.node for change in each.changes if not change.blocked)
        if report.confirm("\n".join([*lines, f"change it on {nodes}?"])):
            accepted.add(each.step.name)
    return accepted


@contextlib.contextmanager
def _interrupted(state: str) -> Iterator[None]:
    """Say on Ctrl-C in the block what ``state`` it leaves."""
    from sparkcluster.errors import Interrupted

    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {state}") from None


def _is_asked() -> bool:
    import sys

    return sys.stdin is not None and sys.stdin.isatty()


def _key(host: Host, terminal: Terminal, report: Shown, *, yes: bool) -> str | None:
    """The operator's public key for a node on which a password was typed to log in; None for others."""
    from sparkcluster.hosts.own_key import create, public_key
    from sparkcluster.hosts.ssh import SshHost

    if not isinstance(host, SshHost) or not terminal.logged_in(host.target):
        return None
    found = public_key(host.name, host.target)
    if found is None and (yes or report.confirm("you have no SSH key: create ~/.ssh/id_ed25519 without a passphrase?")):
        found = create()
    return found


def _run(
    fleet: Fleet, surveys: Any, texts: Mapping[str, Scripts], report: Shown, terminal: Terminal, **options: bool
) -> dict[str, Outcome]:
    from sparkcluster.setup.run import run as run_scripts

    def password(host: Host, again: bool) -> str | None:
        return terminal.sudo_password(host.name, getattr(host, "target", None), again=again)

    report.step("change", ", ".join(node for node, text in texts.items() if text))
    return run_scripts(fleet, surveys, texts, report, password=password, **options)


def _keep_scripts(outcomes: Mapping[str, Outcome], texts: Mapping[str, str]) -> dict[str, Path]:
    """Write the scripts that somebody has to run by hand to this directory; their files by node."""
    from sparkcluster import output_file
    from sparkcluster.errors import UsageError

    files = {}
    for node, outcome in outcomes.items():
        if outcome.by_hand:
            files[node] = Path(f"setup-{node}.sh")
            found = files[node].lstat() if os.path.lexists(files[node]) else None
            if found is not None and not (stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()):
                raise UsageError(
                    f"{files[node]} exists, and is not a file of yours", hint="run this in another directory"
                )
            output_file.write(files[node], partial(_fill, texts[node]), private=True)
    return files


def _fill(text: str, file: IO[bytes]) -> None:
    file.write(text.encode())


def _unreached(errors: Mapping[str, Any]) -> Exception:
    """The error of all nodes that did not answer: addresses follow from all nodes, so nothing is changed."""
    first, *others = errors.values()
    first.others = tuple(others)
    return first  # type: ignore[no-any-return]


# --------------------------------------------------------------------------------------------------- journals


def _journals(args: argparse.Namespace, inventory: Inventory, fleet: Fleet, report: Shown, terminal: Terminal) -> int:
    """``--show`` and ``--undo``."""
    from sparkcluster.cli import setup_view
    from sparkcluster.errors import SetupError, UsageError
    from sparkcluster.setup import journal
    from sparkcluster.setup import run as setup

    report.step("look", f"at {len(inventory.nodes)} nodes")
    found: Collected = setup.journals(fleet, inventory, args.node)
    rows = {
        node: [row for row in journal.describe(survey) if not args.only or row.step in args.only]
        for node, survey in found.surveys.items()
    }
    if args.show or not any(rows.values()):
        if not emitted(args, setup_view.journal_document(inventory.cluster, rows, found.errors)):
            setup_view.show_journals(rows)
            setup_view.show_errors(found.errors)
        return 1 if found.errors else 0
    setup.refuse_to_undo(found.surveys, {node: {row.step for row in of_node} for node, of_node in rows.items()})
    name = shlex.quote(str(args.inventory))
    texts: dict[str, Scripts] = {}
    for node, survey in found.surveys.items():
        try:
            texts[node] = setup.undo_scripts(survey, node, args.only)
        except SetupError as error:  # what one node's journal says stops no other
            found.errors[node] = error
    if not args.yes:
        if args.json or not _is_asked():
            raise UsageError(
                "nobody can be asked whether to undo it", hint=f"sparkcluster setup {name} --show shows it; add --yes"
            )
        if not report.confirm("\n".join([*setup_view.journal_lines(rows), "undo it?"])):
            raise UsageError("nothing was undone", hint="answer y, or add --yes")
    with _interrupted(f"what is undone stays so: run sparkcluster setup {name} --undo again"):
        outcomes = _run(fleet, found.surveys, texts, report, terminal, root_first=True)
    by_hand = _keep_scripts(
        outcomes, {n: setup.undo_scripts(found.surveys[n], n, args.only, confirm="self").root for n in outcomes}
    )
    if not emitted(args, setup_view.undo_document(inventory.cluster, outcomes, found.errors)):
        setup_view.show_undone(outcomes, by_hand)
        setup_view.show_errors(found.errors)
    return 0 if all(each.ok for each in outcomes.values()) and not found.errors else 1
