"""``sparkcluster lint``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sparkcluster.cli.common import json_argument
from sparkcluster.cli.output import emit_json, render_finding, say

if TYPE_CHECKING:
    from sparkcluster.findings import Finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``lint``."""
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+", help="inventories and playbooks")
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Check each file, an inventory together with its playbook; exit 2 where one is malformed."""
    findings = list(dict.fromkeys(finding for path in args.files for finding in _findings(path)))
    if args.json:
        document = {"ok": not findings, "findings": [one.as_json() for one in findings], "nodes": {}}
        emit_json(document)
    else:
        for finding in findings:
            render_finding(finding)
        if not findings:
            count = len(args.files)
            say(f"{count} file{'' if count == 1 else 's'} in order")
    return 2 if findings else 0


def _findings(path: Path) -> list[Finding]:
    from sparkcluster.errors import SpecError, UsageError
    from sparkcluster.findings import Finding
    from sparkcluster.spec.load import is_playbook, load, load_playbook, read

    try:
        if is_playbook(read(path)):
            load_playbook(path)
        else:
            load(path)
    except SpecError as error:
        return [
            Finding(
                code="SPEC-002",
                severity="error",
                summary=f"{problem.path}: {problem.message}" if problem.path else problem.message,
                remedy=(problem.hint,) if problem.hint else (),
                file=problem.file,
                line=problem.line,
            )
            for problem in error.problems
        ]
    except UsageError as error:
        remedy = (error.hint,) if error.hint else ()
        return [Finding("SPEC-001", "error", error.message, remedy=remedy, file=str(path), line=1)]
    return []
