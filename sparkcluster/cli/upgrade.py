"""``sparkcluster upgrade``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparkcluster.cli import consent
from sparkcluster.cli.common import at_least, emitted, inventory_argument, number_type, reporting, switch_flags
from sparkcluster.cli.output import data, show_finding
from sparkcluster.cli.up import result, show
from sparkcluster.errors import UsageError
from sparkcluster.report import size

if TYPE_CHECKING:
    from sparkcluster.cli.progress import Shown
    from sparkcluster.hosts.fleet import Fleet
    from sparkcluster.release.after_ready import Ran
    from sparkcluster.release.up import Up
    from sparkcluster.spec import Spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``upgrade``."""
    inventory_argument(parser, "--json-lines", "--yes")
    parser.add_argument("--image", metavar="REF", help="container image instead of the playbook's")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done and change nothing")
    parser.add_argument("--resume", action="store_true", help="end a switch that was cut off")
    group_flags(parser)
    switch_flags(parser, "--no-rollback", "--min-speed", "--timeout", "--trust", "--wait")


def group_flags(parser: argparse.ArgumentParser) -> None:
    """Flags about groups that are switched in turn."""
    parser.add_argument("--order", metavar="GROUPS", default="", help="groups to switch first, as west,east")
    parser.add_argument(
        "--max-unavailable",
        metavar="N",
        type=at_least(1),
        default=1,
        help="groups switched at once after the first (1)",
    )
    seconds = number_type(float, lambda value: 0 <= value <= 86_400, "from 0 to 86400 seconds")
    parser.add_argument("--pause", metavar="S", type=seconds, default=0.0, help="seconds between groups (0)")


def run(args: argparse.Namespace) -> int:
    """Switch to another image or playbook, or go back."""
    given = {"--image": args.image, "--playbook": args.playbook, "--set": args.set, "--dry-run": args.dry_run}
    other = next((flag for flag, value in given.items() if value), None)
    if args.resume and other:
        raise UsageError(f"--resume goes on with what was begun, and takes no {other}", hint=f"remove {other}")
    with reporting(args) as (fleet, spec, report):
        from sparkcluster.release import after_ready
        from sparkcluster.release.deploy import Options
        from sparkcluster.release.upgrade import resume, upgrade

        if args.image is not None and spec.inventory.runtime.kind != "docker":
            hint = "remove --image"
            raise UsageError("--image: the inventory has runtime process, which runs no image", hint=hint)
        if args.dry_run:
            return _dry_run(args, fleet, spec, report)
        options = Options(
            timeout_s=args.timeout,
            rollback=not args.no_rollback,
            trust=args.trust,
            min_speed=args.min_speed,
            wait_s=args.wait,
            order=tuple(filter(None, args.order.split(","))),
            max_unavailable=args.max_unavailable,
            pause_s=args.pause,
        )
        if args.resume:
            done = resume(fleet, spec, options, report)
        else:
            consent.ask(spec, report, yes=args.yes)
            done = upgrade(fleet, spec, options, report)
        ran = after_ready.run(spec, done, report)
    document = switched(spec, done, ran) | {"moved_bytes": done.moved_bytes}
    if not emitted(args, document):
        show_switch(document, args.inventory, done.view.spec, spec if args.resume else None)
    return 0


def _dry_run(args: argparse.Namespace, fleet: Fleet, spec: Spec, report: Shown) -> int:
    from sparkcluster.cli.stage import lines
    from sparkcluster.findings import has_errors
    from sparkcluster.release.preview import preview

    found = preview(fleet, spec, report)
    if not emitted(args, {"cluster": spec.inventory.cluster, "dry_run": True, **found.as_json()}):
        serves = f"release {found.source} is the last that was verified" if found.source else "nothing was deployed yet"
        data(f"{spec.inventory.cluster}: {serves}")
        differing = [line for each in found.differences for line in each.shown()]
        for line in differing or ["nothing differs from what runs"]:
            data(f"  {line}")
        for line in [*lines(found.staging, dry_run=True), *found.versions]:
            data(f"  {line}")
        if not found.known:
            data("  versions inside the image are known once every node has it: sparkcluster stage brings it")
        if found.start_s is not None and any(each.cost != "nothing" for each in found.differences):
            data(
                f"  expected downtime: about {found.start_s:.0f} s and what requests in flight take, as the last start"
            )
        for finding in found.findings:
            show_finding(finding, str(spec.inventory_path), stream=sys.stdout)
    return 1 if has_errors(found.findings) else 0


def switched(spec: Spec, done: Up, ran: Sequence[Ran]) -> dict[str, Any]:
    """What ``upgrade`` and ``rollback`` report."""
    speeds = {name: {"before": before, "after": after} for name, (before, after) in done.speed.items()}
    return result(spec, done, ran) | {
        "from": done.source,
        "downtime_s": round(max(done.downtime_s.values(), default=0.0), 2),
        "speed": speeds,
    }


def show_switch(document: dict[str, Any], inventory: object, spec: Spec, written: Spec | None) -> None:
    """The result for people, on stdout; ``spec`` and ``written`` as in ``up``."""
    show(document, inventory, spec, written)
    if document.get("restored"):
        data(f"  again  release {document['restored']}, as it was recorded")
    if document.get("moved_bytes"):
        data(f"  moved  {size(document['moved_bytes'])} while release {document['from']} served")
    if document["downtime_s"]:
        data(f"  gap    {document['downtime_s']} s without an answer (release {document['from']} served before)")
    for name, speed in document["speed"].items():
        if speed["before"] and speed["after"]:
            share = speed["after"] / speed["before"]
            data(f"  speed  {name}: {speed['before']:.1f} → {speed['after']:.1f} tokens/s ({share:.2f} times)")
