"""``sparkcluster lint``."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from sparkcluster.cli.common import assigned, common_flags, set_flag
from sparkcluster.cli.output import data, emit_json, show_error
from sparkcluster.findings import REMEDY_LABELS

if TYPE_CHECKING:
    from sparkcluster.findings import Finding
    from sparkcluster.linting import Linted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``lint``."""
    parser.add_argument(
        "files", metavar="FILE", type=Path, nargs="+", help="inventories, playbooks, which may be names, and overlays"
    )
    parser.add_argument("--sarif", metavar="OUT", type=Path, help="also write findings as SARIF 2.1.0")
    set_flag(parser)
    common_flags(parser, "--verbose", "--json")


def run(args: argparse.Namespace) -> int:
    """Check schema, rules and engine arguments of each file; exit 2 if a file is malformed, 1 if it has errors."""
    from sparkcluster.findings import has_errors
    from sparkcluster.linting import lint
    from sparkcluster.spec import library, powers

    if args.sarif is not None:
        from sparkcluster import output_file
        from sparkcluster.cli import sarif

        output_file.check_path(args.sarif, "--sarif", "lint.sarif")
    linted = lint(args.files, assigned(args))
    if args.sarif is not None:
        output_file.write(args.sarif, lambda file: file.write(sarif.text(linted)))
    failed = 2 if linted.errors else 1 if has_errors(linted.findings) else 0
    if args.json:
        emit_json({"ok": not failed, "findings": [finding.as_json() for finding in linted.findings], "nodes": {}})
        return failed
    for error in linted.errors:
        show_error(error)
    if failed < 2:
        show(linted, len(args.files), verbose=args.verbose)
        for path, (spec, *others) in linted.specs.items():
            shown_powers = powers.lines(spec.playbook, spec.inventory, [each.playbook for each in others])
            for line in library.shadowing(spec) + shown_powers:
                data(f"{path}: {line}" if len(args.files) > 1 else line)
    return failed


def show(linted: Linted, files: int, *, verbose: bool) -> None:
    """Findings by file and line, each with what to type; a summary last."""
    from sparkcluster.report import count

    shown = [finding for finding in linted.findings if verbose or finding.severity != "info"]
    for finding in shown:
        _show(finding, verbose=verbose)
    severities = Counter(finding.severity for finding in linted.findings)
    notes = severities.pop("info", 0)
    parts = [count(number, severity) for severity, number in sorted(severities.items())]
    verdict = (
        f"{count(files, 'file')}: {' and '.join(parts)}" if parts else f"{count(files, 'file')} checked, no problems"
    )
    data(f"{verdict}, and {count(notes, 'note')} with --verbose" if notes and not verbose else verdict)


def _show(finding: Finding, *, verbose: bool) -> None:
    data(f"{finding.place}{finding.code} {finding.summary}", kind=finding.severity)
    for word, text in finding.details():
        if word in REMEDY_LABELS or verbose:
            data(text, kind=word, indent="  ")
