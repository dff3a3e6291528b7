"""``sparkcluster setup --show`` and ``--undo``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sparkcluster.cli.setup_work import Result, Work, interrupted, is_asked

if TYPE_CHECKING:
    from sparkcluster.setup.journal import Row
    from sparkcluster.setup.run import Scripts
    from sparkcluster.setup.survey import Collected


def journals(work: Work) -> Result:
    """Show what the journals of the nodes have, or undo it after a question."""
    from sparkcluster.cli import setup_scripts, setup_view
    from sparkcluster.setup import journal
    from sparkcluster.setup import run as setup

    options = work.options
    work.begin()
    found: Collected = setup.journals(work.fleet, work.inventory, options.nodes)
    if found.errors:
        work.report.failed()
    rows = {
        node: [row for row in journal.describe(survey) if not options.only or row.step in options.only]
        for node, survey in found.surveys.items()
    }
    if options.action == "undo" and any(rows.values()):
        return _undo(work, found, rows)
    removed = setup_scripts.remove_done("undo", _undone(found)) if options.action == "undo" else []

    def show() -> None:
        setup_view.show_removed(removed)
        setup_view.show_journals(rows)
        setup_view.show_errors(found.errors)

    return Result(not found.errors, setup_view.journal_document(work.inventory.cluster, rows, found.errors), show)


def _undo(work: Work, found: Collected, rows: Mapping[str, Sequence[Row]]) -> Result:
    from sparkcluster.cli import setup_scripts, setup_view
    from sparkcluster.errors import SetupError, UsageError
    from sparkcluster.setup import run as setup

    setup.refuse_to_undo(found.surveys, {node: {row.step for row in of_node} for node, of_node in rows.items()})
    options, name = work.options, work.options.inventory
    texts: dict[str, Scripts] = {}
    for node, survey in found.surveys.items():
        try:
            texts[node] = setup.undo_scripts(survey, node, options.only)
        except SetupError as error:  # what one node's journal says stops no other
            found.errors[node] = error
    possible = any(texts.values())
    if possible and not options.yes:
        if options.json or not is_asked():
            raise UsageError(
                "nobody can be asked whether to undo it", hint=f"sparkcluster setup {name} --show shows it; add --yes"
            )
        shown = setup_view.journal_lines({node: rows[node] for node in texts})
        if not work.terminal.confirm("\n".join([*shown, "undo it?"])):
            raise UsageError("nothing was undone", hint="answer y, or add --yes")
    with interrupted(f"what is undone stays so: run sparkcluster setup {name} --undo again"):
        outcomes = work.run(found.surveys, texts, root_first=True) if possible else {}
    by_hand = setup_scripts.write(
        "undo",
        outcomes,
        {n: setup.undo_scripts(found.surveys[n], n, options.only, confirm="self").root for n in outcomes},
    )
    ok = all(each.ok for each in outcomes.values()) and not found.errors
    if not ok:
        work.report.failed()

    def show() -> None:
        setup_view.show_undone(outcomes, by_hand, found, inventory=name)

    return Result(ok, setup_view.undo_document(work.inventory.cluster, outcomes, found.errors), show)


def _undone(found: Collected) -> dict[str, set[str]]:
    """By node, the steps of which its journal has nothing."""
    from sparkcluster.setup.steps import BY_NAME

    return {node: set(BY_NAME) - {each.step for each in survey.journal} for node, survey in found.surveys.items()}
