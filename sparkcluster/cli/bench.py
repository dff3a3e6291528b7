"""``sparkcluster bench``."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from sparkcluster.cli.common import at_least, emitted, inventory_argument, is_inventory, number, option, reporting
from sparkcluster.cli.output import message
from sparkcluster.errors import UsageError
from sparkcluster.printable import shell

if TYPE_CHECKING:
    from sparkcluster.bench.record import Record

_VIEWS = {"list": "", "show": " RUN", "compare": " A B"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``bench``."""
    inventory_argument(parser, "--json-lines", playbook=False, model="required if it has several")
    parser.set_defaults(instead=True)
    option(parser, "names RUN*", "bench list, bench show RUN, bench compare A B: recorded runs")
    profiles = ("quick", "guide", "sweep", "arena")
    option(parser, "--profile P", "quick (default), guide, sweep or arena", choices=profiles, default="quick")
    option(parser, "--runs N", "measured passes per cell, after a warm-up pass (default: 3)", at_least(1), default=3)
    option(parser, "--minutes M", "start no new cell after M minutes (default: 30 for sweep, else no limit)", number(0))
    option(parser, "--group G", "group to measure (default: the first)")
    about = "where to send the requests: engine (default) or gateway"
    option(parser, "--through WAY", about, choices=("engine", "gateway"), default="engine")
    about = "A/B test: measure without, with and without this key (as in --set); restarts the model twice"
    option(parser, "--ab KEY=VALUE", about)
    option(parser, "--html", "also write the run with pictures to RUN.html")
    option(parser, "--yes", "do not ask: measure while other requests run (marks the run), restart for --ab")


def run(args: argparse.Namespace) -> int:
    """Measure the running model, or show recorded runs."""
    view = str(args.inventory)
    is_view, takes = view in _VIEWS, _VIEWS.get(view, "")
    if len(args.names) != len(takes.split()) or not (is_view or is_inventory(view)):
        text = f"bench takes an inventory, list, show RUN or compare A B, not {' '.join([view, *args.names])[:80]}"
        raise UsageError(text, hint=f"sparkcluster bench {view if is_view else '--help'}{takes}")
    if is_view and (args.ab, args.group, args.minutes, args.profile, args.runs) != (None, None, None, "quick", 3):
        raise UsageError(f"bench {view} does not measure", hint=f"sparkcluster bench {' '.join([view, *args.names])}")
    from sparkcluster.bench import judge, record
    from sparkcluster.cli import bench_view
    from sparkcluster.inspect.playbooks import offer

    if view == "list":
        kept, notes = record.kept()
        for note in notes:
            message(note, kind="warning")
        if not emitted(args, {"runs": [each.as_json() for each in kept]}):
            bench_view.listed(kept)
        return 0
    found = [record.load(name) for name in args.names] or _measure(args)
    chosen = found[1] if found[1:] else found[0]  # B
    playbook = None
    with contextlib.suppress(UsageError):  # not bundled: no published figures
        playbook = offer(chosen.playbook, len(chosen.nodes)).playbook
    document = judge.compare([found[0], *found[2:]], [chosen]) if found[1:] else chosen.as_json()
    if not emitted(args, document):
        if found[1:]:
            bench_view.compared(document)
        else:
            bench_view.show(chosen, playbook)
    if args.html:
        bench_view.page(chosen, Path(f"{chosen.id}.html"), playbook)
    elif not args.json:
        message(shell("sparkcluster bench show", chosen.id, "--html"), kind="next")
    return 0


def _measure(args: argparse.Namespace) -> list[Record]:
    from sparkcluster.bench.measure import Job, measure

    minutes = args.minutes if args.minutes is not None else 30.0 if args.profile == "sweep" else float("inf")
    job = Job(args.profile, args.runs, minutes, args.group, args.through, args.yes)
    with reporting(args) as (fleet, spec, report):
        if not args.ab:
            return [measure(fleet, spec, job, report)]
        from sparkcluster.bench import ab

        return ab.run(fleet, spec, job, report, change=args.ab)
