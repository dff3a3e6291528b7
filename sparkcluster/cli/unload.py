"""``sparkcluster unload``."""

from __future__ import annotations

import argparse

from sparkcluster.cli import load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``unload``."""
    load.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Unload an on-demand model after its requests have finished."""
    return load.ask(args, "unload")
