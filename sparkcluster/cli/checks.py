"""``sparkcluster checks``: the catalogue, and the pages of codes."""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING

from sparkcluster.cli.common import common_flags, emitted
from sparkcluster.cli.output import data, paint, table

if TYPE_CHECKING:
    from sparkcluster.checks.registry import Page

WIDTH = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``checks``."""
    parser.add_argument("codes", metavar="CODE", nargs="*", help="show the pages of these checks, for example NET-014")
    parser.add_argument("--explain", metavar="CODE", action="append", default=[], help="as CODE alone")
    common_flags(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Print the catalogue, or pages of it."""
    from sparkcluster.checks.pages import find, pages

    codes = [*args.codes, *args.explain]
    chosen = [find(code) for code in codes] or list(pages().values())
    if emitted(args, {"checks": [page.as_json() for page in chosen]}):
        return 0
    if not codes:
        rows = [(page.code, page.severity, page.stage, page.title) for page in chosen]
        table(("CODE", "SEVERITY", "STAGE", "PASSES WHEN"), rows)
    for page in chosen if codes else ():
        if page is not chosen[0]:
            data()
        _explain(page)
    return 0


def _explain(page: Page) -> None:
    from sparkcluster.checks.pages import STAGES

    data(paint(f"{page.code}  {page.title}", "bold"))
    data()
    for name, text in (
        ("severity", f"{page.severity} at most" if page.severity != "info" else page.severity),
        ("checks", STAGES[page.stage].replace("`", "")),
        ("needs", ", ".join(page.needs)),
        ("why", page.why),
    ):
        _labelled(name, text)
    for paragraph in filter(None, page.more.split("\n\n")):
        data()
        for line in textwrap.wrap(" ".join(paragraph.split()), WIDTH):
            data(line)
    if page.more:
        data()
    if page.step:
        _labelled("setup", f"sparkcluster setup INVENTORY --only {page.step}")
    _labelled("remedy", page.remedy or "the finding says what to type on which node")
    _labelled("source", page.source)


def _labelled(name: str, text: str) -> None:
    if text:
        lead = f"{name + ':':<10}"
        for line in textwrap.wrap(text, WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead)):
            data(line)
