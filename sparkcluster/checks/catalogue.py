"""Documentation of all codes: of checks, and of errors that occur before checks can run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

from sparkcluster import engines
from sparkcluster.checks.check import CATALOGUE, MERGED, Context, Page, Seen, Stage, check, load, without_check
from sparkcluster.errors import UsageError
from sparkcluster.findings import edit, here
from sparkcluster.spec import KeyPath
from sparkcluster.spec.powers import SECURITY
from sparkcluster.suggest import closest

# Suggests codes with one wrong character, but not codes that share only the subject.
CODE_CUTOFF = 0.8

STAGES: dict[Stage, str] = {
    "written": "inventory and playbook: `lint`, `preflight`, `up`, `plan`",
    "facts": "the facts of every node: `preflight`, `up`, `plan`, `doctor`",
    "reach": "connections between nodes: `preflight`, `up`",
    "deep": "bandwidth between nodes, hashes of weights: `preflight --deep`, `--hash`",
    "running": "the running cluster: `doctor`",
}
SUBJECTS = {
    "SSH": "Reaching a node",
    "FACT": "Facts",
    "PLAN": "The plan",
    "NET": "Network",
    "HOST": "Hosts",
    "IMG": "Image",
    "MDL": "Weights",
    "FIT": "Memory for the model",
    "SPEC": "Playbook and inventory",
    "SM121": "GB10 (SM121)",
    "RUN": "Running clusters",
}


@functools.cache
def pages() -> dict[str, Page]:
    """Every page by its code, ordered by subject and number; engines add their reports to the sources."""
    load()
    reports = [engines.engine(name).reports for name in engines.names()]
    subjects = list(SUBJECTS)

    def order(page: Page) -> tuple[int, str]:
        return subjects.index(page.subject) if page.subject in SUBJECTS else len(subjects), page.code

    def with_reports(page: Page) -> Page:
        sources = (page.source, *(report.get(page.code) for report in reports))
        return dataclasses.replace(page, source="; ".join(filter(None, sources)))

    return {page.code: with_reports(page) for page in sorted([*without_check(), *CATALOGUE.values()], key=order)}


def find(code: str) -> Page:
    """The page of ``code``, in upper or lower case.

    Raises:
        UsageError: unknown code; the hint names the most similar one.
    """
    documented, requested = pages(), code.strip().upper()
    requested = MERGED.get(requested, requested)
    if requested in documented:
        return documented[requested]
    subject, _, number = requested.rpartition("-")
    padded = f"{subject}-{number.zfill(3)}"
    near = padded if padded in documented else closest(requested, documented, cutoff=CODE_CUTOFF)
    hint = f"did you mean {near}?" if near else "list all codes: sparkcluster checks"
    raise UsageError(f"unknown check {code[:40]}", hint=hint)


@check(
    "SPEC-007",
    "Codes under ignore and allow have an effect",
    stage="written",
    severity="warning",
    source="docs/checks.md",
    remedy=[here("sparkcluster checks", "lists them")],
)
def codes(context: Context) -> Iterator[Seen]:
    """An unknown code has no effect: the finding that was to be ignored still stops the launch.

    Only the inventory can accept codes that protect against hostile playbooks.
    """
    written: list[tuple[str, str, KeyPath | None]]
    written = [("ignore in the inventory", name, None) for name in context.spec.inventory.ignore]
    for index, allow in enumerate(context.spec.playbook.allow):
        written.append(("allow in the playbook", allow.code, ("allow", index, "code")))
    documented = pages() if written else {}
    for where, name, at in written:
        now = MERGED.get(name, name)
        if now not in documented or (name != now and now in SECURITY):
            near = MERGED.get(name) or closest(name, documented, cutoff=CODE_CUTOFF)
            remedy = [edit(f"write {near}")] if near else None
            yield Seen(f"{where} lists {name}, which is not a check code", name, remedy, at=at)
        elif at and name in SECURITY:
            remedy = [edit(f"remove it; to accept it, write ignore: [{name}] in the inventory")]
            yield Seen(f"{where} lists {name}, which a playbook cannot accept", name, remedy, at=at)
