"""Findings about inventories, playbooks and overlays without querying a node: schema, rules, engine arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from sparkcluster import checks
from sparkcluster.errors import Problem, SpecError, UsageError
from sparkcluster.findings import SEVERITIES, Finding
from sparkcluster.spec import Inventory, Playbook, Spec, compose, library
from sparkcluster.spec.assignments import Assignments
from sparkcluster.spec.document import Document
from sparkcluster.spec.load import allowed_overlays, is_overlay, is_playbook, load, read, read_playbook

UNREAD = "SPEC-001"
MALFORMED = "SPEC-002"
UNUSED = "SPEC-006"


@dataclasses.dataclass(frozen=True, slots=True)
class Linted:
    """Findings about some files.

    Attributes:
        findings: all of them, by file and line.
        errors: of files that cannot be used; ``findings`` has them too.
        columns: column of each malformed place, by file and line.
        specs: each inventory with its playbook, and each playbook with a placeholder; not of bundled ones.
    """

    findings: tuple[Finding, ...]
    errors: tuple[UsageError, ...]
    columns: dict[tuple[str, int, str], int]
    specs: dict[str, Spec]


def lint(paths: Sequence[Path], set_: Assignments | None = None) -> Linted:
    """Check each file: an inventory together with its playbook, a playbook with every overlay that it accepts.

    ``set_`` are keys that every playbook gets from the command line.
    """
    unread: list[UsageError] = []
    problems: list[Problem] = []
    findings: list[Finding] = []
    specs: dict[str, Spec] = {}
    for path in paths:
        try:
            more, spec = _file(path, set_)
            findings += more
            if spec is not None and not library.all_bundled(spec):
                specs[str(path)] = spec
        except SpecError as error:
            problems += error.problems
        except UsageError as error:
            unread.append(error)
    problems = list(dict.fromkeys(problems))
    found = [*(error.finding(UNREAD) for error in unread), *map(_malformed, problems), *findings]

    def place(finding: Finding) -> tuple[str, int, int, str]:
        return finding.file or "", finding.line or 0, SEVERITIES.index(finding.severity), finding.code

    unique = sorted(dict.fromkeys(found), key=place)
    return Linted(
        tuple(unique),
        (*unread, *([SpecError(problems)] if problems else [])),
        {(problem.file, problem.line, problem.summary): problem.column for problem in problems},
        specs,
    )


def stand_in(playbook: Playbook, nodes: int) -> Inventory:
    """An inventory of ``nodes`` placeholder Sparks, for a playbook without an inventory."""
    return Inventory.model_validate(
        {
            "cluster": "lint",
            "nodes": [{"name": f"spark-{number}", "host": f"192.0.2.{number}"} for number in range(1, nodes + 1)],
            "playbook": playbook.name,
            "runtime": {"kind": "docker" if playbook.image else "process"},
        }
    )


def _file(path: Path, set_: Assignments | None) -> tuple[list[Finding], Spec | None]:
    """Findings about a file, and the spec that it is part of; None for an overlay."""
    document = read(path)
    if is_overlay(document):
        return _overlay(path, document, set_), None
    if is_playbook(document):
        return _playbook(path, set_)
    spec = load(path, set_=set_)
    return _placed(checks.check_written(spec), str(path)), spec


def _playbook(path: Path, set_: Assignments | None) -> tuple[list[Finding], Spec]:
    playbook, document = read_playbook(path, set_=set_)
    found = _judged(path, playbook, document)
    for name in playbook.overlays:
        found += [finding for finding in _judged(path, *read_playbook(path, [name], set_)) if finding.file != str(path)]
    return found, Spec(stand_in(playbook, 1), playbook, path, path, places=compose.places(document))


def _overlay(path: Path, document: Document, set_: Assignments | None) -> list[Finding]:
    """Findings about an overlay, applied to the playbooks beside it that accept it."""
    found: list[Finding] = []
    used = False
    name = str(document.data.get("overlay"))
    for directory in (path.parent, path.parent.parent):
        for file in sorted(directory.glob("*.yaml")):
            if file != path and name in _allowed(file):
                used = True
                judged = _judged(file, *read_playbook(file, [name], set_))
                found += [finding for finding in judged if finding.file == str(path)]
    if used:
        return found
    return [
        Finding(
            UNUSED, "info", f"no playbook in its directory allows the overlay {name}", seen=f"overlay: {name}",
            why="an overlay is checked together with the playbooks that allow it", file=str(path), line=1,
            remedy=(f"write overlays: [{name}] in a playbook",),
        )
    ]  # fmt: skip


def _allowed(path: Path) -> list[str]:
    """Overlays that the playbook in ``path`` allows; none if it is not a playbook or cannot be read."""
    try:
        return allowed_overlays(read(path))
    except UsageError:
        return []


def _judged(path: Path, playbook: Playbook, document: Document) -> list[Finding]:
    """Findings about a playbook on as many Sparks as it needs; with tensor_parallel auto, on one and on two."""
    places = compose.places(document)
    tensor = playbook.tensor_parallel
    sizes = [count * playbook.pipeline_parallel for count in ((1, 2) if tensor == "auto" else (tensor,))]
    found: list[Finding] = []
    for nodes in [size for size in sizes if playbook.nodes.allow(size)] or [playbook.nodes.min]:
        spec = Spec(stand_in(playbook, nodes), playbook, path, path, places=places)
        found += checks.check_written(spec)
    return _placed(found, str(path))


def _placed(findings: Iterable[Finding], file: str) -> list[Finding]:
    """Findings without a place refer to line 1."""
    return [finding if finding.file else dataclasses.replace(finding, file=file, line=1) for finding in findings]


def _malformed(problem: Problem) -> Finding:
    return Finding(
        code=MALFORMED,
        severity="error",
        summary=problem.summary,
        seen=f"line {problem.line}, column {problem.column}",
        remedy=(problem.hint,) if problem.hint else (),
        file=problem.file,
        line=problem.line or None,
    )
