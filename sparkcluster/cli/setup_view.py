"""Output of ``setup``: what it found, would change, changed and undid, as text and as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sparkcluster.cli.output import data, message, paint, show_error, table, write
from sparkcluster.errors import SparkclusterError
from sparkcluster.report import count
from sparkcluster.setup.journal import restoring
from sparkcluster.setup.ports import Trouble
from sparkcluster.setup.run import Assessment, Outcome, Scripts
from sparkcluster.setup.step import Change
from sparkcluster.setup.steps import BY_NAME
from sparkcluster.setup.survey import Collected

_STATES = {"as before": " (not in effect)", "changed since": " (changed since)"}


def show_steps(changes: Collection[Change], *, why: bool = False) -> None:
    """Every step with changes or a problem: what it found and wants on which nodes; ``why`` adds the reason."""
    for name in [name for name in BY_NAME if any(each.step == name for each in changes)]:
        data(paint(f"{name}: {BY_NAME[name].title}", "bold"))
        nodes: dict[tuple[str, str], list[str]] = {}
        hints = []
        for each in (each for each in changes if each.step == name):
            text = f"{each.found} -> {each.wanted}" + (f" ({each.later})" if each.later else "")
            nodes.setdefault(("error", each.blocked) if each.blocked else ("", text), []).append(each.node)
            hints += [each.hint] if each.hint else []
        for (kind, text), names in nodes.items():
            data(f"{', '.join(names)}: {text}", kind=kind, indent="  ")
        if why:
            data(paint(f"why: {BY_NAME[name].why}", "dim"), indent="  ")
        for hint in dict.fromkeys(hints):
            data(hint, kind="hint", indent="  ")


def _show_wrong(troubles: Collection[Trouble], errors: Mapping[str, SparkclusterError]) -> None:
    for trouble in troubles:
        where = f"{trouble.node}: " if trouble.node and trouble.node not in trouble.text else ""
        data(f"{where}{trouble.text}", kind="error")
        data(trouble.hint, kind="hint", indent="  ")
    for error in errors.values():
        show_error(error)


def _verdict(good: str, bad: str, *, ok: bool) -> None:
    data(paint(good if ok else bad, "bold good" if ok else "bold bad"))


def show_plan(found: Assessment, texts: Mapping[str, Scripts], args: argparse.Namespace) -> None:
    """What would change, with ``--verbose`` the scripts; nothing was changed."""
    show_steps(found.changes, why=args.verbose)
    for node, scripts in texts.items() if args.verbose else ():
        for text in filter(None, scripts):
            data()
            data(paint(f"script for {node}", "bold"))
            write(sys.stdout, text, end="", keep="\n\t")
    _show_wrong(found.troubles, {})
    ready = not found.changes and not found.troubles
    good = f"nothing to change: {count(len(found.surveys), 'node')} set up"
    if found.due:
        good = f"{count(len(found.due), 'step')} would change something; nothing was changed"
    _verdict(good, "setup incomplete; nothing was changed", ok=ready or bool(found.due))
    if ready or found.due:
        message(f"sparkcluster {'preflight' if ready else 'setup'} INVENTORY", kind="next")


def show_done(outcomes: Mapping[str, Outcome], found: Assessment, after: Assessment, *, ok: bool) -> None:
    """The result: ``found`` is from before the changes, ``after`` from afterwards."""
    if not outcomes:
        data(paint("nothing was changed", "bold warn"))
        return
    _show_outcomes(outcomes, "setup")
    failed = {node for node, outcome in outcomes.items() if not outcome.ok}
    if not after.errors:  # else findings across nodes are unknown
        show_steps([each for each in after.changes if each.blocked or each.node not in failed])
    _show_wrong(() if after.errors else after.troubles, after.errors)
    _verdict(f"set up: {', '.join(found.due)}", "setup incomplete; run it again to continue", ok=ok)
    if any(outcome.done for outcome in outcomes.values()):
        message("sparkcluster setup INVENTORY --undo", kind="to undo")
    if ok:
        message("sparkcluster preflight INVENTORY", kind="next")


def _show_outcomes(outcomes: Mapping[str, Outcome], kind: str) -> None:
    """What was done or undone on every node, and what failed."""
    for node, outcome in outcomes.items():
        if outcome.done:
            data(f"{node}: {'undone' if kind == 'undo' else 'done'}: {', '.join(outcome.done)}")
        for step, reason in outcome.failed.items():
            data(f"{node}: {step}: {reason}", kind="error")
        if outcome.by_hand:
            data(f"{node}: {outcome.by_hand}", kind="error")
        if outcome.by_hand and outcome.error is None:
            file = f"{kind}-{node}.sh"
            data(f"read {file}, copy it to {node}, and have an administrator run it there", kind="hint", indent="  ")
            data(f"on {node}: sudo sh {file}", kind="then", indent="  ")
        if outcome.error is not None:
            show_error(outcome.error)


def show_undone(outcomes: Mapping[str, Outcome], found: Collected, *, ok: bool) -> None:
    """The result of undo on every node; ``found`` is from before it."""
    _show_outcomes(outcomes, "undo")
    for node, outcome in outcomes.items():
        for text in outcome.left:
            data(f"{node}: left {text}", kind="error")
            for number, hint in enumerate(restoring(node, found.surveys[node].journal, text)):
                data(hint, kind="then" if number else "hint", indent="  ")
    _show_wrong((), found.errors)
    _verdict("all changes undone", "undo incomplete", ok=ok)
    if not ok:
        message("sparkcluster setup INVENTORY --undo", kind="next")


def show_journals(rows: Mapping[str, Sequence[Mapping[str, Any]]], errors: Mapping[str, SparkclusterError]) -> None:
    """What ``setup`` changed on each node, when, and who ran it."""
    if any(rows.values()):
        cells = []
        for node, row in ((node, row) for node, of_node in rows.items() for row in of_node):
            at = dt.datetime.fromtimestamp(row["at"])  # noqa: DTZ006 - the user's own time
            change = row["text"] + _STATES.get(row["state"], "")
            cells.append((node, row["step"], change, f"{at:%Y-%m-%d %H:%M} by {row['operator']}"))
        table(("NODE", "STEP", "CHANGE", "WHEN"), cells)
    for node in (node for node, of_node in rows.items() if not of_node):
        data(f"{node}: nothing to undo")
    _show_wrong((), errors)


# --------------------------------------------------------------------------------------------------- JSON


def as_json(cluster: str, nodes: Mapping[str, Mapping[str, Any]], found: Assessment | Collected) -> dict[str, Any]:
    """The document of ``--json``, with the document of each node."""
    changed = any("done" in each for each in nodes.values())
    wrong = [dataclasses.asdict(each) for each in getattr(found, "troubles", ())]
    errors = {node: str(error) for node, error in found.errors.items()}
    return {"cluster": cluster, "changed": changed, "nodes": nodes, "troubles": wrong, "errors": errors}


def planned(found: Assessment, node: str, scripts: Scripts) -> dict[str, Any]:
    """What would change on a node, for ``as_json``."""
    keys = ("step", "found", "wanted", "blocked", "later", "hint")
    changes = [{key: getattr(each, key) for key in keys} for each in found.changes if each.node == node]
    return {"changes": changes, "script": scripts.root, "login_script": scripts.login}


def outcome(found: Outcome) -> dict[str, Any]:
    """The result of a node, for ``as_json``."""
    return {**dataclasses.asdict(dataclasses.replace(found, error=None)), "error": found.error and found.error.message}
