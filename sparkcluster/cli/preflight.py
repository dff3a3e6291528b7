"""``sparkcluster preflight``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sparkcluster import hints
from sparkcluster.cli.common import accepted, begin_probe, emitted, inventory_argument, option, reporting
from sparkcluster.cli.output import data, message, paint, table
from sparkcluster.report import count

if TYPE_CHECKING:
    from sparkcluster.facts.between import Measured
    from sparkcluster.inspect.preflight import Preflight


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``preflight``."""
    inventory_argument(parser, "--verbose", "--json-lines", one="--fix, --bundle")
    option(parser, "--yes", "answer yes to questions about permissions and, with --fix, each change")
    option(parser, "--ignore CODE*", "treat errors with this code as warnings")
    option(parser, "--deep", "also measure links, which slows a serving model, and NCCL if it is down (minutes)")
    option(parser, "--hash", "also compare the weights' SHA-256 (reads all of them)")
    about = "write all data read, without secrets, to a .tar.gz; runs containers of the image"
    option(parser, "--bundle FILE", about, Path)
    option(parser, "--fix", "then run the setup steps that fix the findings, after asking about each")


def run(args: argparse.Namespace) -> int:
    """Check every node; exit 1 if a finding would stop ``up``."""
    from sparkcluster import output_file
    from sparkcluster.errors import UsageError

    if args.fix and (args.json or args.json_lines):
        hint = "each finding has its step: sparkcluster setup INVENTORY --only STEP --json"
        raise UsageError("--fix has no JSON output", hint=hint)
    if args.bundle:
        output_file.check_path(args.bundle, "--bundle", "bundle.tar.gz")
    with reporting(args) as (fleet, written, report):
        spec = accepted(args, written, report) if args.deep or args.bundle else written
        probes = begin_probe(fleet, spec)
        from sparkcluster.inspect.preflight import preflight

        asked = {"deep": args.deep, "hashing": args.hash, "ignore": args.ignore}
        found = preflight(fleet, spec, report, **asked, probes=probes)
        if args.bundle:
            from sparkcluster.inspect import bundle

            bundle.write(args.bundle, found, bundle.gather(fleet, found.view, report, containers=True))
            report.note(f"wrote {args.bundle}; its README.txt lists what is in it and what was removed")
    from sparkcluster.spec import consent

    if not emitted(args, found.as_json() | {"asks": consent.pending(spec), "next": hints.command_line(found.next)}):
        show(found, verbose=args.verbose)
        if not args.fix:
            fix = "" if found.ok or "--fix" in found.next else "fix the errors, then "
            message(f"{fix}{found.next}", kind="next")
    return _fix(args, found) if args.fix else 0 if found.ok else 1


def _fix(args: argparse.Namespace, found: Preflight) -> int:
    """Run the steps of ``setup`` that fix the findings; returns the exit code."""
    from sparkcluster.cli import setup

    steps = list(dict.fromkeys(finding.step for finding in found.findings if finding.step))
    if not steps:
        message("nothing to fix" if found.ok else "setup cannot fix any of this")
        return 0 if found.ok else 1
    message(f"fixing by setup: {', '.join(steps)}")
    flags = {"only": steps, "options": [], "node": [], "dry_run": False, "undo": False, "show": False}
    return setup.on_nodes(found.view.spec, argparse.Namespace(**vars(args) | flags))


def show(found: Preflight, *, verbose: bool) -> None:
    """The report as text: drawing, measurements, findings, verdict."""
    from sparkcluster.cli import drawing, findings_view

    for parts in drawing.draw(found.view, found.findings, findings_view.width()):
        data(*parts)
    if found.measured is not None:
        show_rates(found.measured)
    findings_view.show(found.findings, [node.label for node in found.view.spec.inventory.nodes], verbose=verbose)
    data()
    for gap in found.unasked:
        data(f"{gap.what}, on {gap.node or 'the cluster'} ({gap.why})", kind="unknown")
    word = paint("ready", "bold good") if found.ok else paint("not ready", "bold bad")
    ran = [count(len(found.view.facts), "node"), count(found.checks, "check")] if found.ok else []
    counts = findings_view.counted(found.findings, verbose=verbose, cluster=found.view.spec.inventory.cluster)
    data(word, ": " + ", ".join([*ran, *counts, *([f"{found.seconds:.1f} s"] if found.ok else [])]))


def show_rates(measured: Measured) -> None:
    """Bandwidth of each pair and rail, both ways; healthy values; and what was not measured."""
    from sparkcluster.checks.bandwidth import FLOORS_GBIT_S

    kinds = {"tcp": "TCP", "rdma": "RDMA", "rdma-both": "RDMA", "collective": "NCCL"}
    figures: dict[tuple[str, str], dict[str, list[str]]] = {}
    for rate in measured.rates:
        rail = {"rdma-both": "both twins", "collective": "all-gather"}.get(rate.kind, rate.subnet or rate.over)
        text, floor = "no result" if rate.gbit_s is None else f"{rate.gbit_s:.1f}", FLOORS_GBIT_S.get(rate.kind)
        if floor:
            text += " ✓" if (rate.gbit_s or 0) >= floor else " ✗"
        row = figures.setdefault((", ".join(sorted(rate.nodes)), rail), {})
        row.setdefault(kinds[rate.kind], []).append(text)
    if figures:
        columns = dict.fromkeys(kinds[rate.kind] for rate in measured.rates)
        rows = [(*place, *(" / ".join(row.get(name, ())) for name in columns)) for place, row in figures.items()]
        data()
        table(("NODES", "RAIL", *columns), rows)
        data("in Gb/s, each way; healthy: RDMA 92 or more, both twins of a port 190 or more")
    for what, why in measured.skipped.items():
        data(f"not measured: {'all-gather' if what == 'collective' else kinds[what]} ({why})")
