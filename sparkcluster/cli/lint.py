"""``sparkcluster lint``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sparkcluster.cli.common import json_argument
from sparkcluster.cli.output import emit_json, render_error, say

if TYPE_CHECKING:
    from sparkcluster.errors import Problem, UsageError
    from sparkcluster.findings import Finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``lint``."""
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+", help="inventories and playbooks")
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Check each file, an inventory together with its playbook; exit 2 where one is malformed."""
    from sparkcluster.errors import SpecError

    unread: list[UsageError] = []
    problems: list[Problem] = []
    for path in args.files:
        error = _check(path)
        if isinstance(error, SpecError):
            problems += [one for one in error.problems if one not in problems]
        elif error:
            unread.append(error)
    if args.json:
        findings = [*map(_unread, unread), *map(_malformed, problems)]
        emit_json({"ok": not findings, "findings": [one.as_json() for one in findings], "nodes": {}})
        return 2 if findings else 0
    for error in [*unread, *([SpecError(problems)] if problems else [])]:
        render_error(error)
    if unread or problems:
        return 2
    say(f"{len(args.files)} file{'' if len(args.files) == 1 else 's'} in order")
    return 0


def _check(path: Path) -> UsageError | None:
    from sparkcluster.errors import UsageError
    from sparkcluster.spec.load import is_playbook, load, load_playbook, read

    try:
        if is_playbook(read(path)):
            load_playbook(path)
        else:
            load(path)
    except UsageError as error:
        return error
    return None


def _unread(error: UsageError) -> Finding:
    from sparkcluster.findings import Finding

    return Finding("SPEC-001", "error", error.message, remedy=(error.hint,) if error.hint else ())


def _malformed(problem: Problem) -> Finding:
    from sparkcluster.findings import Finding

    return Finding(
        code="SPEC-002",
        severity="error",
        summary=f"{problem.path}: {problem.message}" if problem.path else problem.message,
        seen=f"line {problem.line}, column {problem.column}",
        remedy=(problem.hint,) if problem.hint else (),
        file=problem.file,
        line=problem.line,
    )
