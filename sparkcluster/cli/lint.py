"""``sparkcluster lint``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sparkcluster.cli import findings_view
from sparkcluster.cli.common import assigned, common_flags, default_inventory, emitted, option
from sparkcluster.cli.output import data, show_error, show_finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``lint``."""
    about = "inventory, overlay, playbook (or NAME+OVERLAY; default: $SPARKCLUSTER_INVENTORY, else ./sparkcluster.yaml)"
    option(parser, "files FILE*", about, Path)
    common_flags(parser, "--set", "--verbose", "--json")


def run(args: argparse.Namespace) -> int:
    """Check schema, rules and engine arguments of each file; exit 2 if a file is malformed, 1 if it has errors."""
    from sparkcluster.findings import has_errors
    from sparkcluster.linting import lint
    from sparkcluster.report import count
    from sparkcluster.spec import library, powers

    files = args.files or [default_inventory("FILE")[0]]
    linted = lint(files, assigned(args))
    failed = 2 if linted.errors else 1 if has_errors(linted.findings) else 0
    if emitted(args, {"ok": not failed, "findings": [each.as_json() for each in linted.findings], "nodes": {}}):
        return failed
    for error in linted.errors:
        show_error(error)
    if linted.errors:
        return failed
    for each in linted.findings:
        if args.verbose or each.severity != "info":
            headline = f"{each.place}{each.code} {each.summary}"
            show_finding(each, stream=sys.stdout, headline=headline, indent="", why=args.verbose)
    found = ", ".join(findings_view.counted(linted.findings, verbose=args.verbose))
    data(f"{count(len(files), 'file')}: {found or 'no problems'}")
    by_model = [
        (path, each)
        for path, found in linted.specs.items()
        for each in ([[spec] for spec in found] if found[0].model else [found])
    ]
    said: set[tuple[str, str]] = set()
    for path, (spec, *others) in by_model:
        own = not all(map(library.all_bundled, (spec, *others)))
        head = f"the playbook {library.foreign(spec)}. It needs your consent for:"
        variants = [each.playbook for each in others]
        shown = powers.lines(spec.playbook, spec.inventory, variants, head=head) if own else []
        asked = powers.listed(powers.of_inventory(spec), "the inventory asks for (asked once):")
        for line in [each for each in (*asked, *library.shadowing(spec), *shown) if (path, each) not in said]:
            said.add((path, line))
            data(f"{path}: {line}" if len(files) > 1 else line)
    return failed
