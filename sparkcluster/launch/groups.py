"""Launch several groups at once; each succeeds or fails on its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from sparkcluster.errors import Interrupted, LaunchError, SparkclusterError
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.launch.failed_logs import keep, pointed
from sparkcluster.launch.group import Launch, run
from sparkcluster.report import Report, count
from sparkcluster.runtime import Changer

Outcome = Reply | SparkclusterError


class _Running:
    """One launch under way in a thread of its own."""

    def __init__(self, launch: Launch, run: Callable[[Launch], Reply]) -> None:
        self.launch = launch
        self.ended = threading.Event()
        self.outcome: Reply | BaseException = LaunchError("the launch did not end", step="launch")
        self._launch_group = run
        threading.Thread(target=self._run, name=f"launch {launch.group}", daemon=True).start()

    def _run(self) -> None:
        try:
            self.outcome = self._launch_group(self.launch)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self.outcome = error
        finally:
            self.ended.set()


def launch_groups(
    fleet: Fleet, changer: Changer, launches: Sequence[Launch], report: Report, *, logs: Path | None = None
) -> dict[str, Outcome]:
    """Launch every group; by name, its reply or why it failed. The ranks of a group that failed are stopped.

    After Ctrl-C the groups that have not answered yet are stopped; those that have go on serving.

    Args:
        fleet: the nodes.
        changer: the right to change them.
        launches: one for each group.
        report: progress goes there.
        logs: directory that the last log lines of groups that fail are written to; None for nowhere.
    """
    steps = [launch.steps for launch in launches if launch.steps is not None]
    if steps:
        report.step("start", count(sum(len(nodes) for nodes in steps), "rank"))
    report.step("watch", "until the model answers")
    cancelled = threading.Event()
    running = [_Running(each, lambda launch: run(fleet, changer, launch, report, cancelled)) for each in launches]
    try:
        _wait(running)
    except KeyboardInterrupt:
        _interrupt(running, report, cancelled)
    outcomes: dict[str, Outcome] = {}
    for each in running:
        if not isinstance(each.outcome, (Reply, SparkclusterError)):
            raise each.outcome
        outcomes[each.launch.group] = each.outcome
    _keep_logs(outcomes, logs)
    return outcomes


def _wait(running: Sequence[_Running]) -> None:
    """Until every launch has ended."""
    while not _all_ended(running):
        pass


def _all_ended(running: Sequence[_Running]) -> bool:
    return all(each.ended.wait(0.1) for each in running)


def _interrupt(running: Sequence[_Running], report: Report, cancelled: threading.Event) -> None:
    """After Ctrl-C, stop the groups that have not answered; from the note onwards a second Ctrl-C ends the wait."""
    try:
        cancelled.set()
        report.note("stopping what was started; press Ctrl-C again to leave it as it is")
        _wait(running)
    except KeyboardInterrupt:
        nodes = [name for each in running if not each.ended.is_set() for name in each.launch.plan.nodes]
        raise Interrupted(
            f"interrupted again; ranks may still run on {', '.join(nodes)}" if nodes else "interrupted again",
            step="launch",
            hint="sparkcluster down INVENTORY",
        ) from None


def _keep_logs(outcomes: dict[str, Outcome], logs: Path | None) -> None:
    failed = [error for error in outcomes.values() if isinstance(error, LaunchError) and error.logs]
    if logs is None or not failed:
        return
    if keep(logs, {node: lines for error in failed for node, lines in error.logs.items()}):
        for error in failed:
            error.hint = pointed(error.hint, logs)
