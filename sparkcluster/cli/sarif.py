"""Findings as SARIF 2.1.0 (OASIS, 2020), for code review tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sparkcluster.findings import REMEDY_LABELS
from sparkcluster.printable import as_json

if TYPE_CHECKING:
    from sparkcluster.findings import Finding
    from sparkcluster.linting import Linted

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "info": "note"}
# Findings about the file itself, which are not checks.
TITLES = {
    "SPEC-001": "The file can be read",
    "SPEC-002": "The file matches its schema",
    "SPEC-006": "The overlay is used by a playbook",
}


def text(linted: Linted) -> bytes:
    """The log as JSON."""
    return f"{as_json(document(linted), indent=2)}\n".encode()


def document(linted: Linted) -> dict[str, Any]:
    """One run of one tool, with a rule for every code that was found."""
    from sparkcluster import __version__

    codes = list(dict.fromkeys(finding.code for finding in linted.findings))
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "sparkcluster",
                        "semanticVersion": __version__,
                        "rules": [_rule(code) for code in codes],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "invocations": [{"executionSuccessful": not linted.errors}],
                "results": [_result(finding, codes.index(finding.code), linted) for finding in linted.findings],
            }
        ],
    }


def _rule(code: str) -> dict[str, Any]:
    from sparkcluster.checks.registry import CATALOGUE

    check = CATALOGUE.get(code)
    if check is None:
        title = TITLES.get(code, code)
        return {"id": code, "shortDescription": {"text": title}, "defaultConfiguration": {"level": "error"}}
    text = f"{check.why}\n\n{check.more}".strip()
    rule: dict[str, Any] = {
        "id": code,
        "shortDescription": {"text": check.title},
        "fullDescription": {"text": check.why},
        "help": {"text": f"{text}\n\nSource: {check.source}" if check.source else text},
        "defaultConfiguration": {"level": LEVELS[check.severity]},
    }
    return rule


def _result(finding: Finding, index: int, linted: Linted) -> dict[str, Any]:
    lines = [
        finding.summary,
        finding.seen,
        *(f"{word}: {text}" for word, text in finding.details() if word in REMEDY_LABELS),
    ]
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": LEVELS[finding.severity],
        "message": {"text": "\n".join(line for line in lines if line)},
    }
    if finding.file:
        line = finding.line or 1
        region = {"startLine": line}
        column = linted.columns.get((finding.file, line, finding.summary))
        if column:
            region["startColumn"] = column
        result["locations"] = [{"physicalLocation": {"artifactLocation": {"uri": uri(finding.file)}, "region": region}}]
    return result


def uri(file: str) -> str:
    """A file as SARIF names it: relative to where lint was started, or absolute."""
    path = Path(file)
    if path.is_absolute():
        try:
            path = path.relative_to(Path.cwd())
        except ValueError:
            return path.as_uri()
    return quote(path.as_posix(), safe="/")
