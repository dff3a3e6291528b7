"""``sparkcluster checks``: the catalogue, and a page for each code."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sparkcluster.cli.common import common_flags, emitted, option
from sparkcluster.cli.output import data, paint, table

if TYPE_CHECKING:
    from sparkcluster.checks.check import Page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``checks``."""
    option(parser, "codes CODE*", "show the pages of these checks, for example NET-006")
    common_flags(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Print the catalogue, or the pages of some codes."""
    from sparkcluster.checks.catalogue import find, pages

    chosen = [find(code) for code in args.codes] or list(pages().values())
    if emitted(args, {"checks": [page.as_json() for page in chosen]}):
        return 0
    for page in chosen if args.codes else ():
        _explain(page)
    if not args.codes:
        rows = [(page.code, page.severity, page.stage, page.title) for page in chosen]
        table(("CODE", "SEVERITY", "STAGE", "PASSES WHEN"), rows)
    return 0


def _explain(page: Page) -> None:
    from sparkcluster.checks.catalogue import STAGES

    data(paint(f"{page.code}  {page.title}", "bold"))
    what, _, commands = STAGES[page.stage].replace("`", "").partition(": ")
    parts = {
        "severity": page.severity if page.severity == "info" else f"up to {page.severity}",
        "reads": ", ".join(page.needs) or what,
        "run by": commands,
        "why": " ".join(f"{page.why}. {page.more}".split()),
        "setup": page.step and f"sparkcluster setup INVENTORY --only {page.step}",
        "remedy": page.remedy or "the finding shows the commands for each node",
        "source": page.source,
    }
    for name, text in parts.items():
        if text:
            data(f"{name:<10}{text}")
    data()
