"""``sparkcluster stage``."""

from __future__ import annotations

import argparse
from pathlib import Path

from sparkcluster.cli import stage_view
from sparkcluster.cli.common import accepted, emitted, inventory_argument, number, option, reporting
from sparkcluster.errors import UsageError
from sparkcluster.printable import shell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``stage``."""
    inventory_argument(parser, "--json-lines", "--yes", one="--from")
    about = "copy only the weights or only the image"
    option(parser, "what {weights,image}?", about, choices=("weights", "image"))
    about = "directory with the weights, or an image archive, on this machine; used only if no node has them"
    option(parser, "--from PATH", about, Path, dest="given")
    option(parser, "--dry-run", "show what is missing on which node; change nothing")
    option(parser, "--verify", "read all weights, and replace corrupt copies")
    parser.add_argument(
        "--encrypt",
        action=argparse.BooleanOptionalAction,
        help="also encrypt copies over cables (default: staging.encrypt in the inventory)",
    )
    about = "limit of each node's sending rate, in 10^6 bytes per second (default: staging.limit_mb_s)"
    option(parser, "--limit-rate MB/S", about, number(0.001))


def run(args: argparse.Namespace) -> int:
    """Copy weights and image to every node."""
    from sparkcluster.release.stage import Options, stage

    if args.given is not None and args.what is None:
        raise UsageError("--from needs weights or image", hint="sparkcluster stage INVENTORY weights --from DIR")
    if args.given is not None and not (args.given.is_dir() if args.what == "weights" else args.given.is_file()):
        kind = "directory" if args.what == "weights" else "file"
        raise UsageError(f"{args.given} is not a {kind}", hint=shell("ls -ld", args.given))
    options = Options(
        what=(args.what,) if args.what else ("weights", "image"),
        dry_run=args.dry_run,
        verify=args.verify,
        encrypt=args.encrypt,
        limit_bytes_s=int(args.limit_rate * 1e6) if args.limit_rate else None,
        given=args.given,
        yes=args.yes,
    )
    with reporting(args) as (fleet, written, report):
        spec = written if args.dry_run else accepted(args, written, report)
        done = stage(fleet, spec, options, report)
    if not emitted(args, {"cluster": spec.inventory.cluster, "dry_run": args.dry_run, **done.as_json()}):
        (stage_view.planned if args.dry_run else stage_view.copied)(done)
    return 0
