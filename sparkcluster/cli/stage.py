"""``sparkcluster stage``."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from sparkcluster.cli import consent, stage_view
from sparkcluster.cli.common import emitted, inventory_argument, number_type, reporting
from sparkcluster.errors import UsageError


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
        type=number_type(float, lambda value: 1e-6 <= value < 1e9, "a number of MB/s above 0"),
        metavar="MB/S",
        help="the most that each node sends, in 10^6 bytes per second; default: staging.limit_mb_s",
    )


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
        limit_bytes_s=int(args.limit_rate * 1e6) if args.limit_rate else None,
        given=args.given,
    )
    with reporting(args) as (fleet, spec, report):
        if not args.dry_run:
            consent.ask(spec, report, yes=args.yes)
        done = stage(fleet, spec, options, report)
    if not emitted(args, {"cluster": spec.inventory.cluster, "dry_run": args.dry_run, **done.as_json()}):
        (stage_view.planned if args.dry_run else stage_view.copied)(done, args.given)
    return 0
