"""``sparkcluster discover``."""

from __future__ import annotations

import argparse
from pathlib import Path

from sparkcluster.cli.common import common_flags, option


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``discover``."""
    option(parser, "--host A*", "address or name of a Spark, or USER@A (default: find Sparks by mDNS)")
    option(parser, "--user U", "login name on the Sparks (default: from ~/.ssh/config)")
    option(parser, "-i --identity KEY", "private key file to log in with", _absolute)
    option(parser, "--known-hosts K", "known_hosts file (default: ~/.ssh/known_hosts)", _absolute)
    option(parser, "--cluster NAME", "name of the cluster (default: sparks, or the name of a single Spark)")
    file = parser.add_mutually_exclusive_group()
    option(file, "-o --output FILE", "write the inventory to FILE (default: stdout)", Path)
    option(file, "--into FILE", "add new Sparks to the inventory FILE", Path)
    option(parser, "--yes", "do not ask before overwriting or changing FILE")
    common_flags(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Find Sparks and write an inventory; exit 1 if none was found, or if one could not be reached."""
    from sparkcluster.cli import discover_work

    return discover_work.run(args)
