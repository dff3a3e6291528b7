"""``sparkcluster up``."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparkcluster.cli import consent
from sparkcluster.cli.common import begin_probe, common_flags, emitted, inventory_argument, reporting
from sparkcluster.cli.output import data, message, program
from sparkcluster.errors import OtherPlan, UsageError

if TYPE_CHECKING:
    from sparkcluster.release.after_ready import Ran
    from sparkcluster.release.up import Up
    from sparkcluster.spec import Spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``up``."""
    inventory_argument(parser, "--json-lines", "--yes")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done and change nothing")
    parser.add_argument(
        "--replace",
        action="store_true",
        help="also replace groups that serve another plan or secret, have drifted, or do not answer as expected",
    )
    common_flags(parser, "--no-rollback", "--min-speed", "--timeout", "--trust", "--wait")
    parser.set_defaults(min_speed=0.0)
    parser.set_defaults(verbose=False)  # of plan, for --dry-run
    parser.add_argument("--clear-caches", action="store_true", help="delete compile caches before the start")


def run(args: argparse.Namespace) -> int:
    """Bring the cluster up, or say that it is."""
    if args.dry_run:
        from sparkcluster.cli import plan

        return plan.run(args)
    try:
        with reporting(args) as (fleet, spec, report):
            consent.ask(spec, report, yes=args.yes)
            probes = begin_probe(fleet, spec)
            from sparkcluster.release.deploy import Options
            from sparkcluster.release.up import up

            options = Options(
                timeout_s=args.timeout,
                clear_caches=args.clear_caches,
                replace=args.replace,
                rollback=not args.no_rollback,
                trust=args.trust,
                min_speed=args.min_speed,
                wait_s=args.wait,
            )
            done = up(fleet, spec, options, report, probes)
            from sparkcluster.release import after_ready

            ran = after_ready.run(spec, done, report)
    except OtherPlan as error:
        if not args.json:
            for line in error.lines:
                message(line, indent="  ")
        raise
    document = result(spec, done, ran) | {"drift": {name: list(lines) for name, lines in done.drift.items()}}
    if not emitted(args, document):
        show(document, args.inventory, spec)
    return 0


def result(spec: Spec, done: Up, ran: Sequence[Ran]) -> dict[str, Any]:
    """What ``up``, ``upgrade`` and ``rollback`` report; ``ran`` are commands of ``after_ready``."""
    return {
        "cluster": spec.inventory.cluster,
        "state": "serving",
        "changed": done.changed,
        "release": done.release,
        "model": done.view.spec.playbook.model_name,
        "seconds": round(done.seconds, 2),
        "groups": [
            {"name": group.name, "nodes": list(group.nodes), "endpoint": group.endpoint}
            for group in (done.view.plan.groups if done.view.plan else ())
        ],
        "after_ready": [each.as_json() for each in ran],
    }


def show(document: dict[str, Any], inventory: object, spec: Spec, written: Spec | None = None) -> None:
    """The result for people, on stdout, and how ``spec``, which serves, is used.

    ``written`` is what the inventory says, where the command line did not say what is to serve.
    """
    state = "up" if document["changed"] else "already up, nothing changed"
    data(f"{document['cluster']} is {state} (release {document['release']}, {document['seconds']} s)")
    for group in document["groups"]:
        data(f"  {group['name']}  {group['endpoint']}  on {', '.join(group['nodes'])}")
    data(f"  model  {document['model']}")
    path = shlex.quote(str(inventory))
    data(f'  try    {program()} ask {path} "Hello"')
    if document["groups"]:
        from sparkcluster.inspect.connect import commands

        for word, command in commands(spec, document["groups"][0]["endpoint"]).items():
            data(f"  {word:<6} {command}")
        data(f"  use    {program()} connect {path}")
    data(f"  stop   {program()} down {path}")
    for line in _kept(spec, path, written):
        data(line, indent="  ")
    from sparkcluster.spec.inventory import OPEN_API

    if spec.inventory.api.open_without_key and OPEN_API not in spec.inventory.ignore:
        message("the API requires no key, and is open to the network", kind="warning")
        message(f"{program()} key {path}", kind="hint")


def _kept(spec: Spec, path: str, written: Spec | None) -> list[str]:
    """What to write so that the next ``up`` finds what serves, and not another plan; ``written`` as in ``show``."""
    flags = list(zip(spec.chosen[::2], spec.chosen[1::2], strict=True))
    chosen = next((value for flag, value in flags if flag == "--playbook"), spec.inventory.playbook)
    others = [word for pair in flags if pair[0] != "--playbook" for word in pair]
    lines = []
    if chosen != spec.inventory.playbook:
        new = f"`playbook: {_from_inventory(spec, chosen)}`"
        lines.append(f"keep   write {new} into {path}, in place of `playbook: {spec.inventory.playbook}`")
    if others:
        lines.append(f"keep   give the next up {shlex.join(others)} too, or write it into a playbook")
    if written is not None and written.playbook != spec.playbook:
        lines.append(f"note   the inventory says otherwise: {program()} plan {path} shows what an up would change")
    return lines


def _from_inventory(spec: Spec, name: str) -> str:
    """The playbook that ``--playbook NAME`` found from the current directory, as the inventory has to name it."""
    from sparkcluster.spec.library import find

    base, plus, overlays = name.partition("+")
    beside = spec.inventory_path.parent
    try:
        same = find(base, [beside]).samefile(spec.playbook_path)
    except (OSError, UsageError):
        same = False
    if same:
        return name
    relative = os.path.relpath(spec.playbook_path, beside)
    # beside the inventory it moves with it; elsewhere a path is plainer as a whole
    return (str(spec.playbook_path.absolute()) if relative.startswith("../..") else relative) + plus + overlays
