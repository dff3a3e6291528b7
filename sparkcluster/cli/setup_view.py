"""What ``setup`` found, would change and did, as text and as JSON."""

from __future__ import annotations

import dataclasses
import datetime as dt
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkcluster.cli.findings_view import width
from sparkcluster.cli.output import data, message, paint, show_error
from sparkcluster.report import count

if TYPE_CHECKING:
    from sparkcluster.errors import SparkclusterError
    from sparkcluster.setup.changes import Change
    from sparkcluster.setup.journal import Row
    from sparkcluster.setup.run import Look, Outcome, Scripts
    from sparkcluster.setup.steps import Step
    from sparkcluster.setup.survey import Collected

_RUN_S = 3600
"""Changes of one operator that are not further apart than this are shown as of one time."""
_JOURNAL = ("step", "what", "at", "operator", "state")
_STATES = {"as before": "as before setup", "changed since": "changed since", "unknown": "state unknown"}


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """A step, and what it would change on which node."""

    step: Step
    changes: tuple[Change, ...]


def steps(found: Look) -> list[Planned]:
    """The steps that would change something, or cannot, in their order."""
    from sparkcluster.setup.steps import STEPS

    planned = [Planned(step, tuple(each for each in found.changes if each.step == step.name)) for step in STEPS]
    return [each for each in planned if each.changes]


def problems(found: Look) -> bool:
    """Whether something is wrong that no step changes."""
    return bool(found.troubles) or any(each.blocked for each in found.changes)


def lines(planned: Planned) -> list[str]:
    """A step as text: what it does, what it finds and wants on each node, and why."""
    found = [f"{planned.step.name}: {planned.step.title}"]
    for change in planned.changes:
        if change.blocked:
            found += _wrapped("  ", f"{change.node}: cannot be done: {change.blocked}")
            continue
        text = f"{change.node}: {change.found} -> {change.wanted}" + (f" ({change.later})" if change.later else "")
        found += _wrapped("  ", text)
    return [*found, *_wrapped("  ", f"why: {planned.step.why}")]


def _wrapped(indent: str, text: str) -> list[str]:
    """``text`` on lines that fit, the first one indented, the others more; a path in it is not broken."""
    import textwrap

    first, *more = textwrap.wrap(
        text, max(20, width() - len(indent) - 2), break_long_words=False, break_on_hyphens=False
    )
    return [f"{indent}{first}", *(f"{indent}  {line}" for line in more)]


def show_plan(found: Look, inventory: str) -> None:
    """Every step that would change something."""
    for planned in steps(found):
        first, *more = lines(planned)
        data(paint(first, "bold"))
        for line in more:
            data(line)
        for hint in dict.fromkeys(each.hint for each in planned.changes if each.hint):
            data(hint.replace("INVENTORY", inventory), kind="hint", indent="  ")


def show_blocked(found: Look, inventory: str) -> None:
    """What could not be changed."""
    for change in found.changes:
        if change.blocked:
            data(f"{change.node}: {change.step}: {change.blocked}", kind="error")
            if change.hint:
                data(change.hint.replace("INVENTORY", inventory), kind="hint", indent="  ")


def show_scripts(planned: Mapping[str, Scripts]) -> None:
    """The scripts of every node."""
    for node, scripts in planned.items():
        for text in (scripts.login, scripts.root):
            if text:
                data()
                data(paint(f"script for {node}", "bold"))
                for line in text.splitlines():
                    data(line)


def show_troubles(found: Look) -> None:
    """What is wrong with the cabling."""
    for trouble in found.troubles:
        where = f"{trouble.node}: " if trouble.node and trouble.node not in trouble.text else ""
        data(f"{where}{trouble.text}", kind="error")
        data(trouble.hint, kind="hint", indent="  ")


def show_end(found: Look, inventory: str, *, dry_run: bool) -> None:
    """The last lines where nothing was changed."""
    show_troubles(found)
    due = [each.step.name for each in steps(found) if any(not change.blocked for change in each.changes)]
    nodes = count(len(found.surveys), "node")
    if due:
        data(paint(f"{count(len(due), 'step')} would change something; nothing was changed", "bold good"))
    elif problems(found):
        data(paint(f"not set up: {nodes}; nothing was changed", "bold bad"))
    else:
        data(paint(f"nothing to change: {nodes} set up", "bold good"))
    if not due and not dry_run and not problems(found):
        message(f"sparkcluster preflight {inventory}", kind="next")


def show_outcomes(
    outcomes: Mapping[str, Outcome],
    by_hand: Mapping[str, Path],
    found: Look,
    after: Look,
    *,
    accepted: set[str],
    well: bool,
    whole: bool,
    inventory: str,
) -> None:
    """What became of every node, ``found`` before and ``after`` it.

    ``well`` is of ``is_well``; ``whole``: of all steps on all nodes.
    """
    done = done_steps(outcomes)
    _say_outcomes(outcomes, by_hand, "done")
    for change in due(outcomes, accepted, after):
        still = f" was done, and still: {change.found}"
        text = still if (change.node, change.step) in done else f": {change.found} -> {change.wanted}"
        data(f"{change.node}: {change.step}{text}", kind="error")
    show_blocked(after, inventory)
    later = dict.fromkeys(
        f"{each.step} on {each.node}: {each.later}"
        for each in found.changes
        if each.later and (each.node, each.step) in done
    )
    for text in later:
        message(f"takes effect later: {text}")
    skipped = [each.step.name for each in steps(found) if each.step.name not in accepted]
    if not after.errors:
        show_troubles(after)
    show_errors(after.errors)
    if outcomes and not well:
        data(paint("not set up: see above; what was done stays, and setup goes on from there", "bold bad"))
        return
    if skipped:
        data(paint(f"not set up: {', '.join(skipped)} left as it was", "bold bad"))
    else:
        what = f"set up: {count(len(found.surveys), 'node')}" if whole else f"done: {', '.join(sorted(accepted))}"
        data(paint(what, "bold good"))
    if done:
        message(f"to take it back: sparkcluster setup {inventory} --undo")
        message(f"sparkcluster preflight {inventory}", kind="next")


def is_well(outcomes: Mapping[str, Outcome], accepted: set[str], after: Look) -> bool:
    """Whether the ``accepted`` steps were done and nothing is wrong ``after`` them."""
    well = all(each.ok for each in outcomes.values()) and not after.errors
    return well and not due(outcomes, accepted, after) and not problems(after)


def due(outcomes: Mapping[str, Outcome], accepted: set[str], after: Look) -> list[Change]:
    """Changes of ``accepted`` steps that are due ``after`` them, though nothing failed on the node.

    Without an answer of every node, steps that follow from all of them are not judged.
    """
    from sparkcluster.setup.steps import BY_NAME

    done = done_steps(outcomes)
    failed = {node for node, outcome in outcomes.items() if not outcome.ok}
    judged = {name for name in accepted if not (after.errors and BY_NAME[name].joint)}
    return [
        each
        for each in after.changes
        if each.step in judged and not each.blocked and (each.node not in failed or (each.node, each.step) in done)
    ]


def done_steps(outcomes: Mapping[str, Outcome]) -> set[tuple[str, str]]:
    """Node and step of all that was done."""
    return {(node, step) for node, outcome in outcomes.items() for step in outcome.done}


def _say_outcomes(
    outcomes: Mapping[str, Outcome],
    by_hand: Mapping[str, Path],
    verb: str,
    ways_on: Callable[[str, str], Sequence[str]] = lambda _node, _text: (),
) -> None:
    """What was done on every node, in the word ``verb``, and what was not, with ``ways_on`` from what was left."""
    for node, outcome in outcomes.items():
        if outcome.done:
            data(f"{node}: {verb}: {', '.join(dict.fromkeys(outcome.done))}")
        for text in dict.fromkeys(outcome.left):
            data(f"{node}: left {text}", kind="error")
            for number, hint in enumerate(ways_on(node, text)):
                data(hint, kind="then" if number else "hint", indent="  ")
        for step, reason in outcome.failed.items():
            data(f"{node}: {step}: {reason}", kind="error")
        if outcome.by_hand:
            data(f"{node}: {outcome.by_hand}", kind="error")
        if outcome.error is not None:
            show_error(outcome.error)
        if node in by_hand:
            file = shlex.quote(str(by_hand[node]))
            data(f"read {file}, and copy it to {node}", kind="hint", indent="  ")
            data(f"an administrator runs there: sudo sh {file}", kind="then", indent="  ")
            data("run this again: it looks at what was done", kind="then", indent="  ")


def show_removed(files: Sequence[Path]) -> None:
    """Scripts for administrators that were removed."""
    for file in files:
        message(f"removed {file}: all that it does is done")


def show_undone(
    outcomes: Mapping[str, Outcome], by_hand: Mapping[str, Path], found: Collected, *, inventory: str
) -> None:
    """What became of every node that was undone; ``found`` is from before."""
    from sparkcluster.setup.journal_text import way_on

    def ways_on(node: str, text: str) -> list[str]:
        return [each.replace("INVENTORY", inventory) for each in way_on(node, found.surveys[node].journal, text)]

    _say_outcomes(outcomes, by_hand, "undone", ways_on)
    show_errors(found.errors)
    good = all(each.ok for each in outcomes.values()) and not found.errors
    bad = "not all of it is undone: see above" if outcomes else "nothing was undone: see above"
    data(paint("as before setup" if good else bad, "bold good" if good else "bold bad"))


def show_errors(errors: Mapping[str, SparkclusterError]) -> None:
    """Nodes that did not answer, or whose journal cannot be used."""
    for error in errors.values():
        show_error(error)


def journal_lines(rows: Mapping[str, Sequence[Row]]) -> list[str]:
    """What is set up on each node, by whom and when: a line for each change, on which a path is not broken."""
    lines = []
    for node, of_node in rows.items():
        before: Row | None = None
        for row in of_node:
            if before is None or row.operator != before.operator or row.at - before.at > _RUN_S:
                lines += _wrapped("", f"{node}, by {row.operator} at {_time(row.at)}")
            state = "" if row.state == "as written" else f" ({_STATES[row.state]})"
            lines += _wrapped("  ", f"{row.step}: {row.text}{state}")
            before = row
    return lines


def show_journals(rows: Mapping[str, Sequence[Row]]) -> None:
    """What is set up on each node, when and by whom."""
    for line in journal_lines(rows):
        data(line if line.startswith(" ") else paint(line, "bold"))
    without = [node for node, of_node in rows.items() if not of_node]
    if without:
        data(f"on {', '.join(without)} setup has changed nothing that is not undone")


def _time(at: float) -> str:
    return dt.datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")  # noqa: DTZ006 - the user's own time


# --------------------------------------------------------------------------------------------------- JSON


def document(
    cluster: str, found: Look, scripts: Mapping[str, Scripts], outcomes: Mapping[str, Outcome] | None = None
) -> dict[str, Any]:
    """The result of ``setup`` and of ``--dry-run``; the nodes are those of ``scripts``."""
    nodes: dict[str, Any] = {}
    for node in scripts:
        changes = [
            {
                "step": each.step,
                "found": each.found,
                "wanted": each.wanted,
                "blocked": each.blocked,
                "later": each.later,
                "hint": each.hint,
            }
            for each in found.changes
            if each.node == node
        ]
        nodes[node] = {"changes": changes, "script": scripts[node].root, "login_script": scripts[node].login}
        if outcomes is not None:
            nodes[node] |= _outcome(outcomes.get(node))
    troubles = [dataclasses.asdict(each) for each in found.troubles]
    return {**_document(cluster, nodes, found.errors, changed=outcomes is not None), "troubles": troubles}


def _document(
    cluster: str, nodes: Mapping[str, Any], errors: Mapping[str, SparkclusterError], *, changed: bool
) -> dict[str, Any]:
    told = {node: str(error) for node, error in errors.items()}
    return {"cluster": cluster, "changed": changed, "nodes": nodes, "troubles": [], "errors": told}


def _outcome(outcome: Outcome | None) -> dict[str, Any]:
    from sparkcluster.setup.run import Outcome

    found = outcome or Outcome()
    return {**dataclasses.asdict(dataclasses.replace(found, error=None)), "error": found.error and found.error.message}


def journal_document(
    cluster: str, rows: Mapping[str, Sequence[Row]], errors: Mapping[str, SparkclusterError]
) -> dict[str, Any]:
    """The result of ``--show``."""
    nodes = {
        node: {"journal": [{key: getattr(row, key) for key in _JOURNAL} for row in of_node]}
        for node, of_node in rows.items()
    }
    return _document(cluster, nodes, errors, changed=False)


def undo_document(
    cluster: str, outcomes: Mapping[str, Outcome], errors: Mapping[str, SparkclusterError]
) -> dict[str, Any]:
    """The result of ``--undo``."""
    nodes = {node: _outcome(outcome) for node, outcome in outcomes.items()}
    return _document(cluster, nodes, errors, changed=bool(outcomes))
