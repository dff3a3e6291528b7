"""``sparkcluster upgrade``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sparkcluster.cli import consent, stage_view
from sparkcluster.cli.common import (
    at_least,
    common_flags,
    emitted,
    inventory_argument,
    number,
    option,
    reporting,
    typed,
)
from sparkcluster.cli.output import data, message, show_finding
from sparkcluster.cli.up import result, show
from sparkcluster.errors import UsageError
from sparkcluster.report import count, duration, size, speed_change

if TYPE_CHECKING:
    from sparkcluster.release.after_ready import Ran
    from sparkcluster.release.preview import Preview
    from sparkcluster.release.up import Up
    from sparkcluster.spec import Spec
    from sparkcluster.staging.expected import Expected

_SHOWN = 3
"""Settings that are shown; of more only the first, unless all are asked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``upgrade``."""
    inventory_argument(parser, "--json-lines", "--yes")
    option(parser, "--image REF", "container image instead of the playbook's")
    option(parser, "--dry-run", "show what would be done and change nothing")
    option(parser, "-v --verbose", "with --dry-run: show every difference and copy")
    option(parser, "--save", "then write what was chosen into the inventory")
    option(parser, "--resume", "end a switch that was cut off")
    group_flags(parser)
    common_flags(parser, "--no-rollback", "--min-speed", "--timeout", "--trust", "--wait")


def group_flags(parser: argparse.ArgumentParser) -> None:
    """Flags about groups that are switched in turn."""
    option(parser, "--order GROUPS", "groups to switch first, as west,east", default="")
    option(parser, "--max-unavailable N", "groups switched at once after the first (1)", at_least(1), default=1)
    option(parser, "--pause S", "seconds between groups (0)", number(0, 86_400), default=0.0)


def run(args: argparse.Namespace) -> int:
    """Switch to another image or playbook, or go back."""
    given = ["image", "playbook", "set", "dry_run"]
    other = next((flag.replace("_", "-") for flag in given if getattr(args, flag)), None)
    if args.resume and other:
        raise UsageError(f"--resume goes on with what was begun, and takes no --{other}", hint=f"remove --{other}")
    if args.dry_run:
        return _dry_run(args)
    with reporting(args) as (fleet, spec, report):
        from sparkcluster.release import after_ready
        from sparkcluster.release.deploy import Options
        from sparkcluster.release.upgrade import resume, upgrade

        _refuse_image(args, spec)
        if args.save:
            from sparkcluster.cli import saved

            saved.select(args.inventory, spec.selected, dry_run=True)
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
    return finish(args, spec, done, ran, moved_bytes=done.moved_bytes)


def finish(args: argparse.Namespace, spec: Spec, done: Up, ran: Sequence[Ran], **more: Any) -> int:
    """Report a switch, and write what was chosen for it into the inventory if the user wants that."""
    chosen = done.view.spec
    speeds = {name: {"before": before, "after": after} for name, (before, after) in done.speed.items()}
    downtime_s = round(max(done.downtime_s.values(), default=0.0), 2)
    document = result(spec, done, ran) | {"from": done.source, "downtime_s": downtime_s, "speed": speeds, **more}
    if chosen.selected not in ({}, spec.inventory.selected) and hasattr(args, "save"):
        document["saved"] = args.save or (not (args.json or args.json_lines) and _wanted(chosen))
    lines = []
    if document.get("saved"):
        from sparkcluster.cli import saved

        lines = saved.select(args.inventory, chosen.selected)
    if not emitted(args, document):
        _show(document, chosen)
        for line in lines:
            message(line, indent="  ")
        if document.get("saved") is False:
            from sparkcluster.inspect.chosen import hints

            message(hints(chosen)("sparkcluster upgrade INVENTORY --save   writes it into the inventory"), kind="hint")
    return 0


def _refuse_image(args: argparse.Namespace, spec: Spec) -> None:
    if args.image is not None and spec.inventory.runtime.kind != "docker":
        raise UsageError("--image: the inventory has runtime process, which runs no image", hint="remove --image")


def _wanted(chosen: Spec) -> bool:
    """Whether the user wants what was chosen in the inventory."""
    from sparkcluster.cli.prompts import Terminal

    words = [f"{key}: {value}" for key, value in chosen.selected.items() if chosen.inventory.selected.get(key) != value]
    return Terminal().confirm(f"write {', '.join(words)} into {chosen.inventory_path}?", default=True)


def _dry_run(args: argparse.Namespace) -> int:
    from sparkcluster.findings import has_errors
    from sparkcluster.release.preview import preview

    with reporting(args) as (fleet, spec, report):
        _refuse_image(args, spec)
        found = preview(fleet, spec, report)
    wrong = has_errors(found.findings)
    if not emitted(args, {"cluster": spec.inventory.cluster, "dry_run": True, **found.as_json()}):
        _show_preview(args, spec, found)
        more = ["--dry-run", "-v"] if wrong and not args.verbose else []
        if found.differences:
            message(" ".join([typed(args)("sparkcluster upgrade INVENTORY"), *more]), kind="next")
    return int(wrong)


def _show_preview(args: argparse.Namespace, spec: Spec, found: Preview) -> None:
    serves = f"release {found.source} serves {found.model[0]}" if found.source else "nothing was deployed yet"
    restarts = any(each.cost != "nothing" for each in found.differences)
    would = "this would restart it" if restarts else "nothing needs a restart"
    data(f"{serves}; {would if found.model[0] == found.model[1] else f'this would serve {found.model[1]}'}")
    for word, text in _summary(found, args.timeout or spec.playbook.ready_timeout_s, verbose=args.verbose):
        data(f"  {word:<9}{text}")
    if args.verbose:
        for line in [*found.lines(), *found.versions]:
            data(line, indent="  ")
        stage_view.planned(found.staging)
    for finding in found.findings:
        if args.verbose and finding.severity != "info":
            show_finding(finding, typed(args), stream=sys.stdout)
        elif finding.severity == "error":
            data(finding.headline, kind="error", indent="  ")


def _summary(found: Preview, limit_s: float, *, verbose: bool) -> Iterator[tuple[str, str]]:
    """What would change, be copied, and for how long nothing answers."""
    for word, (old, new) in (("model", found.model), ("image", found.image)):
        if old != new:
            yield word, f"{old or 'none'} → {new or 'none'}"
    most = len(found.written) if verbose or len(found.written) <= _SHOWN else 1
    if found.written:
        more = f"; {len(found.written) - most} more: -v" if len(found.written) > most else ""
        yield "settings", f"{'; '.join(found.written[:most])}{more}"
    moving = [each for each in found.staging.stagings if each.what in ("weights", "image")]
    for staging in moving:
        yield from (("copy", f"{staging.what}{text}") for text in _moves(found.staging.expected.get(staging.name, ())))
    if not any(each.missing for each in moving):
        yield "copy", "nothing is missing"
    if all(each.cost == "nothing" for each in found.differences):
        yield "downtime", "none"
    elif found.start_s is None:
        yield "downtime", f"unknown: not started here yet with this image; at most {duration(limit_s)}"
    else:
        yield "downtime", f"about {duration(found.start_s)}, as the last start, and what requests in flight take"


def _moves(expected: Sequence[Expected]) -> Iterator[str]:
    """How much comes from where, and to how many nodes."""
    if expected:
        first, last = expected[0], expected[-1]
        amount = "" if first.bytes is None else f" ({size(first.bytes)})"
        took = "" if last.seconds is None else f" ({duration(last.seconds)})"
        yield f"{amount} from {first.source} to {count(len(expected), 'Spark')}{took}"


def _show(document: dict[str, Any], spec: Spec) -> None:
    """The result for people, on stdout; ``spec`` is what serves."""
    lines = []
    if document.get("restored"):
        lines.append(("again", f"release {document['restored']}, as it was recorded"))
    if document.get("moved_bytes"):
        lines.append(("copied", f"{size(document['moved_bytes'])} while release {document['from']} served"))
    if document["downtime_s"]:
        lines.append(("downtime", f"{document['downtime_s']:.1f} s between release {document['from']} and this one"))
    for name, speed in document["speed"].items():
        if speed["before"] and speed["after"]:
            group = f"{name}: " if len(document["groups"]) > 1 else ""
            lines.append(("speed", group + speed_change(speed["before"], speed["after"])))
    show(document, spec, lines)
