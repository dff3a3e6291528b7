"""``sparkcluster up``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparkcluster.cli import consent
from sparkcluster.cli.common import begin_probe, common_flags, emitted, inventory_argument, option, reporting
from sparkcluster.cli.output import data, message, paint, program

if TYPE_CHECKING:
    from sparkcluster.release.after_ready import Ran
    from sparkcluster.release.up import Up
    from sparkcluster.spec import Spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``up``."""
    inventory_argument(parser, "--json-lines", "--yes")
    option(parser, "--dry-run", "show what would be done and change nothing")
    option(parser, "--replace", "also replace groups that serve another plan or secret, or do not answer as expected")
    common_flags(parser, "--no-rollback", "--min-speed", "--timeout", "--trust", "--wait")
    parser.set_defaults(min_speed=0.0)
    parser.set_defaults(verbose=False)  # of plan, for --dry-run
    option(parser, "--clear-caches", "delete compile caches before the start")


def run(args: argparse.Namespace) -> int:
    """Bring the cluster up, or say that it is."""
    if args.dry_run:
        from sparkcluster.cli import plan

        return plan.run(args)
    with reporting(args) as (fleet, spec, report):
        consent.ask(spec, report, yes=args.yes)
        probes = begin_probe(fleet, spec)
        from sparkcluster.release import after_ready
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
        ran = after_ready.run(spec, done, report)
    document = result(spec, done, ran) | {"drift": {name: list(lines) for name, lines in done.drift.items()}}
    if not emitted(args, document):
        show(document, spec)
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


def show(document: dict[str, Any], spec: Spec, more: Sequence[tuple[str, str]] = ()) -> None:
    """The result for people, on stdout: where what serves answers, and what to type next; ``more`` comes between."""
    cluster, groups = document["cluster"], document["groups"]
    word = "up" if document["changed"] else "already up"
    ended = f"release {document['release']}, {document['seconds']:.1f} s"
    where = groups[0]["endpoint"] if len(groups) == 1 else f"{len(groups)} groups"
    data(paint(f"{cluster} is {word}", "bold good"), "   ", paint(where, "bold"), f"   {document['model']}   {ended}")
    if len(groups) > 1:
        for group in groups:
            data(f"  {group['name']:<9} {group['endpoint']}   {', '.join(group['nodes'])}")
    path = shlex.quote(str(spec.inventory_path))
    typed = {"ask": f'ask {path} "Hello"', "clients": f"connect {path}", "stop": f"down {path}"}
    for word, text in more:
        data(f"  {word:<9} {text}")
    for word, command in [*tunnel(spec), *((word, f"{program()} {each}") for word, each in typed.items())]:
        data(f"  {word:<9} ", paint(command, "type"))
    from sparkcluster.spec.inventory import OPEN_API

    if spec.inventory.api.open_without_key and OPEN_API not in spec.inventory.ignore:
        message("the API requires no key, and is open to the network", kind="warning")
        message(f"{program()} key {path}", kind="hint")


def tunnel(spec: Spec) -> list[tuple[str, str]]:
    """The command that the API is reached through, where this machine reaches the head by SSH alone."""
    from sparkcluster.inspect.connect import connection

    found = connection(spec).tunnel
    return [("tunnel", found)] if found else []
