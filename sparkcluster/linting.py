"""Findings about inventories, playbooks and overlays without querying a node: schema, rules, engine arguments."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sparkcluster import checks
from sparkcluster.checks.catalogue import find
from sparkcluster.checks.check import EXAMPLE, accepted
from sparkcluster.errors import Problem, SpecError, UsageError
from sparkcluster.findings import SEVERITIES, Finding, edit, remedies
from sparkcluster.hints import CommandLine
from sparkcluster.spec import Inventory, Playbook, Spec, compose
from sparkcluster.spec.assignments import Assignments
from sparkcluster.spec.document import Document
from sparkcluster.spec.kinds import allowed_overlays, is_overlay, is_playbook
from sparkcluster.spec.load import load_all, named, read, read_playbook, variant_sizes
from sparkcluster.spec.variants import MOST

_PLACEHOLDER = ipaddress.IPv4Address("192.0.2.0")
UNREAD = "SPEC-001"
MALFORMED = "SPEC-002"
UNUSED = "SPEC-006"
IMAGELESS = "SPEC-014"


@dataclasses.dataclass(frozen=True, slots=True)
class Linted:
    """Findings about some files.

    Attributes:
        findings: all of them, by file and line.
        errors: files that cannot be used; ``findings`` has them too.
        specs: the specs of each file: an inventory with its playbook (one per model), or a playbook with placeholder
            nodes (one per number of nodes).
    """

    findings: tuple[Finding, ...]
    errors: tuple[UsageError, ...]
    specs: dict[str, list[Spec]]


def lint(paths: Sequence[Path], set_: Assignments | None = None) -> Linted:
    """Check each file: an inventory together with its playbook, a playbook together with each overlay that it allows.

    A playbook may be a name and have ``+OVERLAY``, as in other commands.

    ``set_`` holds keys from the command line that override every playbook.
    """
    unread: list[UsageError] = []
    problems: list[Problem] = []
    findings: list[Finding] = []
    specs: dict[str, list[Spec]] = {}
    for given in paths:
        try:
            path, overlays = (given, []) if given.exists() else named(str(given))
            more, found_specs = _file(path, overlays, set_)
            findings += more
            specs |= {str(path): found_specs} if found_specs else {}
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
        specs,
    )


def stand_in(playbook: Playbook, nodes: int) -> Inventory:
    """An inventory of ``nodes`` placeholder Sparks, for a playbook without an inventory."""
    return Inventory.model_validate(
        {
            "cluster": "lint",
            "nodes": [{"name": f"spark-{at}", "host": str(_PLACEHOLDER + at)} for at in range(1, nodes + 1)],
            "playbook": playbook.name,
            "runtime": {"kind": "docker" if playbook.image else "process"},
        }
    )


def _file(path: Path, overlays: Sequence[str], set_: Assignments | None) -> tuple[list[Finding], list[Spec]]:
    """Findings about a file, and its specs; an overlay has no specs."""
    document = read(path)
    if is_overlay(document):
        return _overlay(path, document, set_), []
    if is_playbook(document):
        return _playbook(path, overlays, set_)
    found_specs = load_all(path, set_=set_)
    found = [_with_path(finding, path) for spec in found_specs for finding in checks.check_written(spec)]
    return [*_placed(found, str(path)), *unchanged(path)], found_specs


def unchanged(path: Path) -> Iterator[Finding]:
    """Lines of the inventory that still have the example's value, which is marked CHANGE."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        value, mark, _ = line.partition("# CHANGE")
        if mark and value.strip():
            summary = f"still marked CHANGE: {value.strip(' -')}"
            remedy = edit("write your own value, and delete CHANGE")
            yield Finding(EXAMPLE, "warning", summary, remedies=(remedy,), file=str(path), line=number)


def _playbook(path: Path, overlays: Sequence[str], set_: Assignments | None) -> tuple[list[Finding], list[Spec]]:
    specs = _specs(path, overlays, set_)
    found = _judged(path, specs)
    if specs[0].playbook.image is None:
        found.append(accepted(_noted(IMAGELESS, "the playbook has no image", path), specs[0]))
    for name in () if overlays else specs[0].playbook.overlays:
        found += [finding for finding in _judged(path, _specs(path, [name], set_)) if finding.file != str(path)]
    return found, specs


def _overlay(path: Path, document: Document, set_: Assignments | None) -> list[Finding]:
    """Findings about an overlay, applied to the playbooks in its directory or the one above that allow it."""
    found: list[Finding] = []
    used = False
    name = str(document.data.get("overlay"))
    for directory in (path.parent, path.parent.parent):
        for file in sorted(directory.glob("*.yaml")):
            if file != path and name in _allowed(file):
                used = True
                judged = _judged(file, _specs(file, [name], set_))
                found += [finding for finding in judged if finding.file == str(path)]
    if used:
        return found
    return [_noted(UNUSED, f"no playbook in its directory allows the overlay {name}", path)]


def _allowed(path: Path) -> list[str]:
    """Overlays that the playbook in ``path`` allows; empty if it is not a playbook or cannot be read."""
    try:
        return allowed_overlays(read(path))
    except UsageError:
        return []


def _specs(path: Path, overlays: Sequence[str], set_: Assignments | None) -> list[Spec]:
    """The playbook at each number of Sparks to check: as many as it needs (auto: one and two), and at its variants."""
    playbook = read_playbook(path, overlays, set_)[0]
    sizes = [playbook.ranks or 0] if playbook.ranks else [playbook.parts, 2 * playbook.parts]
    sizes = [size for size in sizes if playbook.nodes.allow(size)]
    # sizes at which a variant begins or ends
    edges = {edge for each in variant_sizes(path, overlays) for edge in (each.start, each[-1], each.stop)}
    for edge in sorted(edges - {MOST - 1, MOST}):
        served = read_playbook(path, overlays, set_, edge)[0]
        size = served.ranks or max(edge, served.nodes.min)
        sizes += [size] if served.nodes.allow(size) else []
    found: list[Spec] = []
    for nodes in sorted(set(sizes)) or [playbook.nodes.min]:
        served, document = read_playbook(path, overlays, set_, nodes)
        found.append(Spec(stand_in(served, nodes), served, path, path, places=compose.places(document)))
    return found


def _judged(path: Path, specs: Iterable[Spec]) -> list[Finding]:
    """Findings about a playbook on the placeholder nodes of ``specs``."""
    return _placed([finding for spec in specs for finding in checks.check_written(spec)], str(path))


def _noted(code: str, summary: str, path: Path) -> Finding:
    """A finding about a file, with reason and remedy of its page."""
    page = find(code)
    return Finding(code, page.severity, summary, why=page.why, remedies=(edit(page.remedy),), file=str(path), line=1)


def _with_path(finding: Finding, inventory: Path) -> Finding:
    """``finding`` with the inventory's path in its remedies, so that they can be pasted."""
    typed = CommandLine(str(inventory))
    with_path = (dataclasses.replace(each, text=typed(each.text)) for each in finding.remedies)
    return dataclasses.replace(finding, remedies=tuple(with_path))


def _placed(findings: Iterable[Finding], file: str) -> list[Finding]:
    """``findings``; those without a place refer to line 1 of ``file``."""
    return [finding if finding.file else dataclasses.replace(finding, file=file, line=1) for finding in findings]


def _malformed(problem: Problem) -> Finding:
    return Finding(
        code=MALFORMED,
        severity="error",
        summary=problem.summary,
        seen=f"line {problem.line}, column {problem.column}",
        remedies=remedies([problem.hint or ""]),
        file=problem.file,
        line=problem.line or None,
    )
