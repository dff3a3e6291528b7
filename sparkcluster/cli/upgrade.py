"""``sparkcluster upgrade``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sparkcluster.cli import change, common, stage_view
from sparkcluster.cli.common import at_least, common_flags, emitted, inventory_argument, number, option, reporting
from sparkcluster.cli.output import data, message, show_finding
from sparkcluster.errors import UsageError
from sparkcluster.report import Report, count, duration, size

if TYPE_CHECKING:
    from sparkcluster.hosts.fleet import Fleet
    from sparkcluster.release.rollout import Rollout
    from sparkcluster.release.upgrade import Preview
    from sparkcluster.spec import Spec
    from sparkcluster.staging.expected import Expected


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``upgrade``."""
    inventory_argument(parser, "--json-lines", "--yes", one="--image, --save, --resume, --order")
    option(parser, "--image REF", "container image instead of the playbook's")
    option(parser, "--dry-run", "show what would be done and change nothing")
    option(parser, "-v --verbose", "with --dry-run: show every difference and copy")
    option(parser, "--save", "afterwards write the new selection into the inventory")
    option(parser, "--resume", "finish an interrupted upgrade or rollback")
    option(parser, "--order GROUPS", "groups to switch first, for example west,east", _names, default=())
    option(parser, "--max-unavailable N", "groups switched together after the first (1)", at_least(1), default=1)
    option(parser, "--pause S", "seconds between groups (default: 0)", number(0, 86_400), default=0.0)
    about = "roll back below R times the old speed; 0: off (default: 0.7)"
    option(parser, "--min-speed R", about, number(0, 1), default=0.7)
    common_flags(parser, "--no-rollback", "--timeout", "--wait")


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def run(args: argparse.Namespace) -> int:
    """Switch to another image or playbook; roll back if that fails."""
    given = ["image", "playbook", "set", "dry_run"]
    other = next((flag.replace("_", "-") for flag in given if getattr(args, flag)), None)
    if args.resume and other:
        raise UsageError(f"--resume and --{other} cannot be combined", hint=f"remove --{other}")
    if args.dry_run:
        return _dry_run(args)

    def switch(fleet: Fleet, spec: Spec, report: Report) -> Rollout:
        from sparkcluster.release.upgrade import resume, upgrade

        _refuse_image(args, spec)
        if args.save:
            from sparkcluster.cli import saved

            saved.select(args.inventory, spec.selected, model=spec.model, dry_run=True)
        if args.resume:
            return resume(fleet, spec, change.options(args), report)
        return upgrade(fleet, common.accepted(args, spec, report), change.options(args), report)

    return change.run(args, switch)


def _refuse_image(args: argparse.Namespace, spec: Spec) -> None:
    if args.image is not None and spec.inventory.runtime.kind != "docker":
        raise UsageError("--image: runtime process uses no image", hint="remove --image")


def _dry_run(args: argparse.Namespace) -> int:
    from sparkcluster.findings import has_errors
    from sparkcluster.release.upgrade import preview

    with reporting(args) as (fleet, spec, report):
        _refuse_image(args, spec)
        found = preview(fleet, spec, report)
    wrong = has_errors(found.view.findings)
    if not emitted(args, {"cluster": spec.inventory.cluster, "dry_run": True, **found.as_json()}):
        _show_preview(args, spec, found)
        more = ["--dry-run", "-v"] if wrong and not args.verbose else []
        if found.differences:
            message(" ".join(["sparkcluster upgrade INVENTORY", *more]), kind="next")
    return int(wrong)


def _show_preview(args: argparse.Namespace, spec: Spec, found: Preview) -> None:
    serves, model = found.serves.plan.get("model") if found.serves else None, spec.playbook.model_name
    newest = found.view.newest
    restarts = any(each.cost != "nothing" for each in found.differences)
    would = "this would restart it" if restarts else "nothing needs a restart"
    would = would if serves == model else f"this would serve {model}"
    data(f"{f'release {newest.number} serves {serves}' if newest else 'no release yet'}; {would}")
    for word, text in _summary(found, args.timeout or spec.playbook.ready_timeout_s):
        data(f"  {word:<9}{text}")
    if args.verbose:
        for line in [*(line for each in found.differences for line in each.shown()), *found.versions]:
            data(line, indent="  ")
        stage_view.planned(found.staging)
    for finding in found.view.findings:
        if args.verbose and finding.severity != "info":
            show_finding(finding, stream=sys.stdout)
        elif finding.severity == "error":
            data(finding.headline, kind="error", indent="  ")


def _summary(found: Preview, limit_s: float) -> Iterator[tuple[str, str]]:
    """Changes, copies and the expected downtime."""
    from sparkcluster.release.states import brief

    yield from brief(found.serves, found.view.spec, "-v")
    moving = [each for each in found.staging.stagings if each.what in ("weights", "image")]
    for staging in moving:
        yield from (("copy", f"{staging.what}{text}") for text in _moves(found.staging.expected.get(staging.name, ())))
    if not any(each.missing for each in moving):
        yield "copy", "nothing is missing"
    if all(each.cost == "nothing" for each in found.differences):
        yield "downtime", "none"
    elif found.start_s is None:
        yield "downtime", f"unknown: last started with another model or image; at most {duration(limit_s)}"
    else:
        yield "downtime", f"about {duration(found.start_s)}, like the last start, plus the time of requests in flight"


def _moves(expected: Sequence[Expected]) -> Iterator[str]:
    """How much is copied from where, and to how many nodes."""
    if expected:
        first, last = expected[0], expected[-1]
        amount = "" if first.bytes is None else f" ({size(first.bytes)})"
        took = "" if last.seconds is None else f" ({duration(last.seconds)})"
        yield f"{amount} from {first.source} to {count(len(expected), 'Spark')}{took}"
