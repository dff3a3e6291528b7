"""``sparkcluster stage``."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from sparkcluster.cli import consent
from sparkcluster.cli.common import emitted, inventory_argument, reporting
from sparkcluster.cli.output import data
from sparkcluster.cli.stage_view import NO_STAGING, complete, planned, unused
from sparkcluster.cli.transfers import duration, summary
from sparkcluster.errors import UsageError
from sparkcluster.report import size

if TYPE_CHECKING:
    from sparkcluster.spec.playbook import Model
    from sparkcluster.staging.run import StageReport

_ORIGINS = {"download": "downloaded", "controller": "from this machine", "build": "built"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``stage``."""
    inventory_argument(parser, "--json-lines", "--yes")
    parser.add_argument("what", nargs="?", choices=("weights", "image"), help="stage only weights or only the image")
    parser.add_argument(
        "--from",
        dest="given",
        metavar="PATH",
        type=Path,
        help="directory on this machine with the weights (plain files or a Hugging Face cache), or an image archive "
        "written by docker save; used only if no node has them",
    )
    parser.add_argument("--dry-run", action="store_true", help="show what is missing where, and change nothing")
    parser.add_argument(
        "--verify", action="store_true", help="read all weights, and replace corrupt copies with right ones"
    )
    parser.add_argument(
        "--encrypt",
        action=argparse.BooleanOptionalAction,
        help="encrypt copies on cables too, or not; default: staging.encrypt of the inventory",
    )
    parser.add_argument(
        "--limit-rate",
        type=_limit,
        metavar="MB/S",
        help="the most that each node sends, in 10^6 bytes per second; default: staging.limit_mb_s",
    )


def _limit(text: str) -> int:
    """Bytes per second."""
    try:
        limit = int(float(text) * 1e6)
    except (ValueError, OverflowError):
        limit = 0
    if limit < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of MB/s")
    return limit


def run(args: argparse.Namespace) -> int:
    """Bring weights and image to every node."""
    from sparkcluster.release.stage import Options, stage

    if args.given is not None and args.what is None:
        raise UsageError("--from needs weights or image", hint="sparkcluster stage INVENTORY weights --from DIR")
    if args.given is not None and not (args.given.is_dir() if args.what == "weights" else args.given.is_file()):
        kind = "directory" if args.what == "weights" else "file"
        raise UsageError(f"{args.given} is not a {kind}", hint=f"ls -ld {shlex.quote(str(args.given))}")
    options = Options(
        what=(args.what,) if args.what else ("weights", "image"),
        dry_run=args.dry_run,
        verify=args.verify,
        encrypt=args.encrypt,
        limit_bytes_s=args.limit_rate,
        given=args.given,
        size_of=_size_of,
    )
    with reporting(args) as (fleet, spec, report):
        if not args.dry_run:
            consent.ask(spec, report, yes=args.yes)
        done = stage(fleet, spec, options, report)
    if not emitted(args, {"cluster": spec.inventory.cluster, "dry_run": args.dry_run, **done.as_json()}):
        for line in lines(done, dry_run=args.dry_run, given=args.given):
            data(line)
    return 0


def _size_of(model: Model) -> int | None:
    """Bytes of the weights of ``model``, as they are recorded, or by the hub; None where it does not answer."""
    from sparkcluster.errors import SparkclusterError
    from sparkcluster.staging.known_models import known

    try:
        found = known(model).model
    except SparkclusterError:
        return None
    return None if found is None else found.size_bytes or sum(each.size_bytes for each in found.tensors or ()) or None


def lines(done: StageReport, *, dry_run: bool, given: Path | None = None) -> list[str]:
    """The report as text: a line for each copy, or for what is complete; of a dry run a table within 78 columns."""
    if dry_run:
        return planned(done, given)
    out = []
    for staging in done.stagings:
        head = f"{staging.what}  {staging.name}"
        copied = [copy for copy in done.copied if copy.what == staging.what]
        verified = done.verified.get(staging.name) if staging.what == "weights" else None
        if given and staging.sources:
            out.append(unused(staging, given))
        if not staging.missing and not copied:
            right = f"every byte was read, and is right on {', '.join(verified or ())}"
            out.append(f"{head}: {right}" if verified else complete(staging))
        if verified:
            out += [f"{head}: {each.mended}" for each in done.corrupt if each.model == staging.name]
        for copy in copied:
            origin = _ORIGINS.get(copy.source, f"from {copy.source}")
            if copy.source == "build":
                out.append(f"{head}: {copy.node} {origin} in {duration(copy.seconds)}")
                continue
            rate = f", {size(copy.bytes / copy.seconds)}/s" if copy.seconds > 0 else ""
            out.append(f"{head}: {copy.node} {origin}, {size(copy.bytes)} in {duration(copy.seconds)}{rate}")
        moved = [copy for copy in copied if copy.source not in _ORIGINS]
        if len(moved) > 1:  # all at once
            total = summary({copy.node: copy.bytes for copy in moved}, max(copy.seconds for copy in moved))
            out += [f"{head}: {total}"] if total else []
        reached = {copy.node for copy in copied}
        out += [f"{head}: {node} {lacks}" for node, lacks in staging.missing if node not in reached]
    out += [f"warning: {warning}" for warning in done.warnings]
    return out or [NO_STAGING]
