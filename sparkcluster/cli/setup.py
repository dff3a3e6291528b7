"""``sparkcluster setup``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sparkcluster.cli.common import common_flags, connect_fleet, inventory_argument, load_spec
from sparkcluster.cli.output import emit_json
from sparkcluster.cli.setup_work import Options, Result, Work, interrupted, is_asked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkcluster.hosts.base import Host
    from sparkcluster.setup.run import Look
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
        "--node",
        metavar="NAME",
        action="append",
        default=[],
        help="change only this node, and ask for no password of another; again for another",
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
    options = Options(
        args.inventory,
        "dry run" if args.dry_run else "undo" if args.undo else "show" if args.show else "set up",
        only=(*args.only, *args.options) if args.only else (),
        options=tuple(args.options),
        nodes=tuple(args.node),
        yes=args.yes,
        json=args.json,
        verbose=args.verbose,
    )
    return on_nodes(inventory, options)


def on_nodes(inventory: Inventory, options: Options) -> int:
    """Do what ``options`` say; the exit code. For ``preflight --fix`` as well."""
    from sparkcluster.cli import setup_journal
    from sparkcluster.cli.progress import reporter
    from sparkcluster.cli.prompts import Terminal
    from sparkcluster.hosts.prompts import About

    with (
        reporter(as_json=options.json, json_lines=False) as report,
        Terminal(report, silent=options.json) as terminal,
        connect_fleet(inventory, About(terminal, options.nodes) if options.nodes else terminal) as fleet,
    ):
        act = setup_journal.journals if options.action in {"undo", "show"} else _set_up
        done = act(Work(options, inventory, fleet, report, terminal))
    if options.json:
        emit_json(done.document)
    else:
        done.show()
    return 0 if done.ok else 1


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


def _set_up(work: Work) -> Result:
    from sparkcluster.cli import setup_scripts, setup_view
    from sparkcluster.setup import run as setup

    options, name = work.options, work.options.inventory
    keys = _Keys(work)

    def look() -> Look:
        return setup.look(
            work.fleet, work.inventory, only=options.only, options=options.options, keys=keys.of, changing=options.nodes
        )

    work.begin()
    found = look()
    if found.errors:
        raise _unreached(found.errors)
    planned = {node: setup.scripts(found, node, {each.step for each in found.changes}) for node in found.surveys}
    dry_run = options.action == "dry run"
    if dry_run or not any(planned.values()):
        removed = [] if dry_run else setup_scripts.remove_done("setup", _finished(found, options))

        def show_plan() -> None:
            setup_view.show_plan(found, name)
            if options.verbose:
                setup_view.show_scripts(planned)
            setup_view.show_removed(removed)
            setup_view.show_end(found, name, dry_run=dry_run)

        document = setup_view.document(work.inventory.cluster, found, planned)
        return Result(not setup_view.problems(found), document, show_plan)
    with interrupted("nothing was changed"):
        steps = _accepted(work, found)
    texts = {node: setup.scripts(found, node, steps) for node in found.surveys}
    with interrupted(f"what was done stays: run sparkcluster setup {name} again"):
        outcomes = work.run(found.surveys, texts) if steps else {}
    by_hand = setup_scripts.write(
        "setup", outcomes, {n: setup.scripts(found, n, steps, confirm="self").root for n in outcomes}
    )
    # What was done is looked at again.
    after = look() if setup_view.done_steps(outcomes) else found
    removed = [] if after.errors else setup_scripts.remove_done("setup", _finished(after, options))
    well = setup_view.is_well(outcomes, steps, after)
    if not well:
        work.report.failed()

    def show() -> None:
        setup_view.show_removed(removed)
        setup_view.show_outcomes(
            outcomes,
            by_hand,
            found,
            after,
            accepted=steps,
            well=well,
            whole=not options.only and not options.nodes,
            inventory=name,
        )

    good = well and steps == {each.step for each in found.changes}
    return Result(good, setup_view.document(work.inventory.cluster, after, texts, outcomes), show)


def _finished(found: Look, options: Options) -> dict[str, set[str]]:
    """By node, the steps that are as wanted there."""
    from sparkcluster.setup.steps import selected

    steps = {step.name for step in selected(options.only, options.options)}
    return {
        node: steps - {each.step for each in found.changes if each.node == node}
        for node in found.surveys
        if not options.nodes or node in options.nodes
    }


def _accepted(work: Work, found: Look) -> set[str]:
    """Names of the steps whose changes the operator wants; raises UsageError where nobody can be asked."""
    from sparkcluster.cli import setup_view
    from sparkcluster.errors import UsageError

    options = work.options
    steps = [step for step in setup_view.steps(found) if any(not each.blocked for each in step.changes)]
    if options.yes:
        if not options.json:
            with work.report.paused():
                setup_view.show_plan(found, options.inventory)
        return {each.step.name for each in steps}
    if options.json or not is_asked():
        raise UsageError(
            f"setup would change {', '.join(each.step.name for each in steps)}, and nobody can be asked",
            hint=f"sparkcluster setup {options.inventory} --dry-run shows it; --yes makes every change",
        )
    accepted = set()
    for each in steps:
        nodes = ", ".join(change.node for change in each.changes if not change.blocked)
        if work.terminal.confirm("\n".join([*setup_view.lines(each), f"change it on {nodes}?"])):
            accepted.add(each.step.name)
    return accepted


class _Keys:
    """The operator's public key for nodes on which a password was typed to log in; one that is missing is created."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._found: dict[str, str | None] = {}
        self._created: str | None = None

    def of(self, node: str) -> str | None:
        """That for ``node``; None where no password was typed, empty where there is no key and none is to be made."""
        if node not in self._found:
            self._found[node] = self._for(self._work.fleet[node])
        return self._found[node]

    def _for(self, host: Host) -> str | None:
        from sparkcluster.hosts.own_key import public_key
        from sparkcluster.hosts.ssh import SshHost

        if not isinstance(host, SshHost) or not self._work.terminal.logged_in(host.target):
            return None
        found = public_key(host.name, host.target)
        if found is None and self._created is None:
            self._created = self._create()
        return found or self._created

    def _create(self) -> str:
        from sparkcluster.hosts.own_key import create

        question = "you have no SSH key: create ~/.ssh/id_ed25519 without a passphrase?"
        if self._work.options.action == "dry run" or not (
            self._work.options.yes or self._work.terminal.confirm(question)
        ):
            return ""
        return create()


def _unreached(errors: Mapping[str, Any]) -> Exception:
    """The error of all nodes that did not answer: addresses follow from all nodes, so nothing is changed."""
    first, *others = errors.values()
    first.others = tuple(others)
    return first  # type: ignore[no-any-return]
