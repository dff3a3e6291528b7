"""``sparkcluster preflight``."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from sparkcluster.cli import consent
from sparkcluster.cli.common import begin_probe, emitted, inventory_argument, reporting
from sparkcluster.cli.output import data, message, paint, table

if TYPE_CHECKING:
    from sparkcluster.facts.measured import Measured
    from sparkcluster.inspect.preflight import Preflight


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``preflight``."""
    inventory_argument(parser, "--verbose", "--json-lines")
    parser.add_argument(
        "--yes",
        action="store_true",
        help="accept what the playbook can do beyond serving, and with --fix every change, without being asked",
    )
    parser.add_argument(
        "--ignore",
        metavar="CODE",
        action="append",
        default=[],
        help="treat errors with this code as warnings",
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="also measure bandwidth between nodes, and NCCL in a container of the image (minutes)",
    )
    parser.add_argument("--hash", action="store_true", help="also compare the weights' SHA-256 (reads all of them)")
    parser.add_argument(
        "--bundle",
        metavar="FILE",
        type=Path,
        help="write everything that was read, and what only real machines can tell, without secrets, to a .tar.gz; "
        "copies an image of 1 MiB between the first two nodes and removes it (docs/first-hour.md)",
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="then change the nodes by the steps of setup that fix what was found, after asking about each",
    )
    parser.add_argument("--junit", metavar="FILE", type=Path, help="also write a JUnit report")


def run(args: argparse.Namespace) -> int:
    """Check every node; exit 1 where a finding would stop ``up``."""
    _check_flags(args)
    with reporting(args) as (fleet, spec, report):
        if (args.deep or args.bundle) and spec.inventory.runtime.kind == "docker":
            consent.ask(spec, report, yes=args.yes)
        probes = begin_probe(fleet, spec)
        from sparkcluster.inspect.preflight import Options, preflight

        options = Options(deep=args.deep, hashes=args.hash, ignore=tuple(args.ignore))
        found = preflight(fleet, spec, options, report, probes)
        if args.bundle:
            from sparkcluster.inspect import bundle, first_hour

            gathered = first_hour.gather(fleet, spec, found.facts, found.topology, report, changes=True)
            bundle.write(args.bundle, found, gathered)
    if args.junit:
        from sparkcluster import output_file
        from sparkcluster.cli import junit

        output_file.write(args.junit, lambda file: file.write(junit.document(found)))
    asks = consent.pending(spec)
    if not emitted(args, found.as_json() | {"asks": asks}):
        show(found, inventory=shlex.quote(str(args.inventory)), verbose=args.verbose)
        if asks:
            message(f"up asks first whether {spec.playbook_path} may do more than serve ({', '.join(asks)})")
    if args.bundle:
        message(f"wrote {args.bundle}; its README.txt lists what is in it and what was removed")
    if args.fix:
        return _fix(args, found)
    return 0 if found.ok else 1


def _check_flags(args: argparse.Namespace) -> None:
    """Raise UsageError for flags that cannot be together, files that cannot be written, and unknown codes."""
    from sparkcluster import output_file

    if args.fix and (args.json or args.json_lines):
        from sparkcluster.errors import UsageError

        raise UsageError(
            "--fix has no JSON of its own",
            hint="each finding has its step: sparkcluster setup INVENTORY --only STEP --json",
        )
    if args.junit:
        output_file.check_path(args.junit, "--junit", "preflight.xml")
    if args.bundle:
        output_file.check_path(args.bundle, "--bundle", "bundle.tar.gz")
    if args.ignore:
        from sparkcluster.checks.pages import find

        for code in args.ignore:
            find(code)


def _fix(args: argparse.Namespace, found: Preflight) -> int:
    """Run the steps of ``setup`` that fix what was found; its exit code."""
    from sparkcluster.cli import setup
    from sparkcluster.cli.setup_work import Options

    steps = list(dict.fromkeys(finding.step for finding in found.findings if finding.step))
    if not steps:
        message("there is nothing to fix" if found.ok else "setup fixes none of this")
        return 0 if found.ok else 1
    message(f"fixing by setup: {', '.join(steps)}")
    options = Options(args.inventory, only=tuple(steps), yes=args.yes, verbose=args.verbose)
    return setup.on_nodes(found.spec.inventory, options)


def show(found: Preflight, *, inventory: str, verbose: bool) -> None:
    """The report as text: drawing, findings, summary."""
    from sparkcluster.cli import drawing, findings_view

    lines = drawing.draw(found.spec, found.facts, found.topology, found.findings, width=findings_view.width())
    for line in lines if findings_view.draws() else drawing.plain(lines):
        data(*findings_view.marked(line))
    if found.measured is not None:
        show_rates(found.measured)
    nodes = [node.label for node in found.spec.inventory.nodes]
    findings_view.show(found.findings, nodes, inventory=inventory, verbose=verbose)
    waiting: dict[tuple[str, str], list[str]] = {}
    for gap in found.unasked:
        waiting.setdefault((gap.what, gap.why), []).append(gap.node or "the cluster")
    if waiting:
        data()
    for (what, why), names in waiting.items():
        data(f"{what}, on {', '.join(names)} ({why})", kind="unknown")
    data()
    summary = findings_view.verdict(found.findings, len(found.facts), found.checks, found.seconds, verbose=verbose)
    data(paint(summary, "bold good" if found.ok else "bold bad"))


def show_rates(measured: Measured) -> None:
    """Measurements as a table, and what was not measured."""
    from sparkcluster.cli import drawing, findings_view

    names = {"tcp": "TCP", "rdma": "RDMA", "rdma-both": "RDMA, both twins", "nccl": "NCCL", "collective": "all-gather"}
    rows = [
        (
            " → ".join(rate.nodes) if len(rate.nodes) == 2 and rate.kind != "collective" else ", ".join(rate.nodes),
            names[rate.kind],
            rate.over,
            "no result" if rate.gbit_s is None else f"{rate.gbit_s:.1f} Gb/s",
            "" if rate.latency_ms is None else f"{rate.latency_ms:.2f} ms",
        )
        for rate in measured.rates
    ]
    if rows:
        data()
        table(
            ("measured", "by", "over", "rate", "latency"),
            rows if findings_view.draws() else [drawing.plain(row) for row in rows],
        )
    for what, why in measured.skipped.items():
        data(f"not measured: {names.get(what, what)} ({why})")
