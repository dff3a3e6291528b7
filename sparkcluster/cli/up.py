"""``sparkcluster up``."""

from __future__ import annotations

import argparse
import shlex

from sparkcluster.cli import consent
from sparkcluster.cli.common import begin_probe, emitted, inventory_argument, number_type, reporting
from sparkcluster.cli.output import note, program, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``up``."""
    inventory_argument(parser, "--json-lines", "--yes")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done and change nothing")
    parser.add_argument(
        "--replace",
        action="store_true",
        help="also replace groups that serve another plan or secret, have drifted, or do not answer as expected",
    )
    seconds = number_type(float, lambda value: 0 < value < float("inf"), "a number of seconds above 0")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds,
        help="limit until the model answers, in seconds; vLLM's own limits follow the playbook's ready_timeout_s",
    )
    parser.add_argument("--clear-caches", action="store_true", help="delete compile caches before the start")


def run(args: argparse.Namespace) -> int:
    """Bring the cluster up, or say that it is."""
    if args.dry_run:
        from sparkcluster.cli import plan

        return plan.run(args)
    from sparkcluster.errors import OtherPlan

    try:
        with reporting(args) as (fleet, spec, report):
            consent.ask(spec, report, yes=args.yes)
            probes = begin_probe(fleet, spec)
            from sparkcluster.release.up import up
            from sparkcluster.release.walk import Options

            options = Options(timeout_s=args.timeout, clear_caches=args.clear_caches, replace=args.replace)
            done = up(fleet, spec, options, report, probes)
    except OtherPlan as error:
        if not args.json:
            for line in error.lines:
                note(f"  {line}")
        raise
    document = {
        "cluster": spec.inventory.cluster,
        "state": "serving",
        "changed": done.changed,
        "release": done.release,
        "model": spec.playbook.model_name,
        "seconds": round(done.seconds, 2),
        "drift": {name: list(lines) for name, lines in done.drift.items()},
        "groups": [
            {"name": group.name, "nodes": list(group.nodes), "endpoint": group.endpoint}
            for group in (done.view.plan.groups if done.view.plan else ())
        ],
    }
    if not emitted(args, document):
        show(document, args.inventory)
    return 0


def show(document: dict[str, object], inventory: object) -> None:
    """The result for people, on stdout."""
    state = "up" if document["changed"] else "already up, nothing changed"
    say(f"{document['cluster']} is {state} (release {document['release']}, {document['seconds']} s)")
    for group in document["groups"]:  # type: ignore[attr-defined]
        say(f"  {group['name']}  {group['endpoint']}  on {', '.join(group['nodes'])}")
    say(f"  model  {document['model']}")
    path = shlex.quote(str(inventory))
    say(f'  try    {program()} ask {path} "Hello"')
    say(f"  stop   {program()} down {path}")
