"""Launch several groups at once; each succeeds or fails on its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from sparkcluster.errors import Interrupted, LaunchError, SparkclusterError
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fleet import Calls
from sparkcluster.release.group import Launch, run
from sparkcluster.report import Report, count, duration
from sparkcluster.runtime import Changer
from sparkcluster.runtime.failed_logs import keep, pointed

Outcome = Reply | SparkclusterError
# Every launch has a limit of its own.
WAIT_S = 7 * 86_400


def launch_groups(
    changer: Changer, launches: Sequence[Launch], report: Report, *, logs: Path | None = None
) -> dict[str, Outcome]:
    """Launch every group; by name, its reply or why it failed. The ranks of a group that failed are stopped.

    After Ctrl-C the groups that have not answered yet are stopped; those that have go on serving.

    The last log lines of groups that failed are written to the directory ``logs``.
    """
    steps = [launch.steps for launch in launches if launch.steps is not None]
    limit_s = max((launch.ready_timeout_s for launch in launches), default=0.0)
    last = max((launch.last_s for launch in launches if launch.last_s is not None), default=None)
    ranks = f"{count(sum(len(nodes) for nodes in steps), 'rank')}, " if steps else ""
    before = "" if last is None else f"; last time {duration(last)}"
    report.step("start", f"{ranks}within {duration(limit_s)}{before}")
    cancelled = threading.Event()
    calls: Calls[Reply] | None = None
    try:
        calls = Calls(lambda launch: run(changer, launch, report, cancelled), {each.group: each for each in launches})
        outcomes = calls.wait(WAIT_S)
    except KeyboardInterrupt:
        if calls is None:
            raise Interrupted("interrupted; no rank was started", step="start") from None
        outcomes = _interrupted(calls, launches, report, cancelled)
    if any(isinstance(outcome, SparkclusterError) for outcome in outcomes.values()):
        report.failed()
    _keep_logs(outcomes, logs)
    return outcomes


def _interrupted(
    calls: Calls[Reply], launches: Sequence[Launch], report: Report, cancelled: threading.Event
) -> dict[str, Outcome]:
    """After Ctrl-C, stop the groups that have not answered; from the note onwards a second Ctrl-C ends the wait."""
    try:
        cancelled.set()
        report.note("stopping what was started; press Ctrl-C again to leave it running")
        return calls.wait(WAIT_S)
    except KeyboardInterrupt:
        pending = calls.pending()
        nodes = [node for launch in launches if launch.group in pending for node in launch.plan.nodes]
        left = Interrupted(
            f"interrupted again; ranks may still run on {', '.join(nodes)}" if nodes else "interrupted again",
            step="start",
            hint="sparkcluster down INVENTORY",
        )
        left.left_running = True
        raise left from None


def _keep_logs(outcomes: dict[str, Outcome], logs: Path | None) -> None:
    failed = [error for error in outcomes.values() if isinstance(error, LaunchError) and error.logs]
    if logs is None or not failed:
        return
    if keep(logs, failed):
        for error in failed:
            error.kept, error.hint = True, pointed(error.hint)
