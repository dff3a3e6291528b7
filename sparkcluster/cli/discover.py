"""``sparkcluster discover``."""

from __future__ import annotations

import argparse
from pathlib import Path

from sparkcluster.cli.common import common_flags


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``discover``."""
    parser.add_argument(
        "--host",
        metavar="A",
        action="append",
        default=[],
        help="address or name of a Spark, or USER@A, instead of looking for Sparks by mDNS; repeatable",
    )
    parser.add_argument("--user", metavar="U", help="login name on the Sparks (default: that of ~/.ssh/config)")
    parser.add_argument("-i", "--identity", metavar="KEY", type=_absolute, help="private key file to log in with")
    parser.add_argument("--known-hosts", metavar="K", type=_absolute, help="known_hosts file, not ~/.ssh/known_hosts")
    parser.add_argument("--cluster", metavar="NAME", help="name of the cluster (default: sparks; of one, its own)")
    file = parser.add_mutually_exclusive_group()
    file.add_argument("-o", "--output", metavar="FILE", type=Path, help="write the inventory to FILE, not to stdout")
    file.add_argument("--into", metavar="FILE", type=Path, help="add Sparks that are not in it to the inventory FILE")
    parser.add_argument("--yes", action="store_true", help="overwrite or change FILE without being asked")
    common_flags(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Find Sparks and write an inventory; exit 1 if none was found, or one was not reached."""
    from sparkcluster.cli import discover_view

    return discover_view.run(args)
