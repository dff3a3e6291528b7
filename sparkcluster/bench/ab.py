"""A/B test of one change: measures the running release, then the change, then the running release again.

::

    A measured ── asked ── switch to B ── B measured ── switch to A ── A measured
    (nothing is stopped)        │ any failure, Ctrl-C
                                ▼
                          A serves again; else the error has the command to roll back
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time

from sparkcluster.bench.measure import Job, measure
from sparkcluster.bench.record import Record, save
from sparkcluster.errors import SparkclusterError, SpecError, UsageError
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.ask import serving
from sparkcluster.inspect.cluster import see
from sparkcluster.inspect.releases import node_records
from sparkcluster.release.replacement import PROMPTS, replies
from sparkcluster.release.rollback_target import RollbackTarget, accept, find
from sparkcluster.release.states import Desired, Options
from sparkcluster.release.up import up
from sparkcluster.release.upgrade import preview
from sparkcluster.report import Report, duration
from sparkcluster.runtime.lease import this_operator
from sparkcluster.spec import Spec, check_playbook
from sparkcluster.spec.assignments import Assignments, read
from sparkcluster.spec.document import Document
from sparkcluster.spec.load import load_all, validate
from sparkcluster.spec.playbook import Playbook


def run(fleet: Fleet, spec: Spec, job: Job, report: Report, *, change: str) -> list[Record]:
    """Measure A, the running release, then B, which is A with ``change`` (``KEY=VALUE``), then A again.

    Each run is kept with its greedy answers, and with the names of all three in ``pair``; only B has ``change``.

    Raises:
        UsageError: ``change`` has no effect, or A or B is not accepted; nothing was stopped.
        NotServing: nothing serves.
        RolledBack: B did not come up, and A serves again.
        SparkclusterError: as ``measure`` and ``upgrade``; A serves again, or the hint has the command.
    """
    if job.runs < 2:
        raise UsageError("--ab needs several passes, to compare their spread", hint="remove --runs 1")
    number, records = serving(fleet, spec, job.group)[0].source, node_records(fleet, spec)[0]
    target = find(spec, number, records, report, yes=job.yes)
    other = accept(_with(target.spec, change), report, yes=job.yes)
    found, began, seed, kept = preview(fleet, other, report), time.monotonic(), int(time.time()), list[Record]()
    if all(each.cost == "nothing" for each in found.differences):
        raise UsageError(f"--ab {change} does not change the running release", hint="sparkcluster status INVENTORY")

    def keep(change: str = "") -> None:
        kept.append(measure(fleet, spec, job, report, change=change, seed=seed))
        group = see(fleet, spec).groups[kept[-1].group]
        said = zip(PROMPTS, replies(fleet, group, temperature=0) if kept[-1].kind == "chat" else (), strict=False)
        kept[-1].answers = {prompt: reply.text for prompt, reply in said if reply.problem is None}

    def switch(spec: Spec, again: RollbackTarget | None = None) -> None:
        newest = see(fleet, spec).newest
        if newest and newest.number != number and newest.record["operator"] != this_operator():
            raise SparkclusterError(f"meanwhile {newest.record['operator']} deployed release {newest.number}")
        chosen = Options(replace=True, yes=job.yes, rollback=again is None, on_demand=_on_demand(other))
        up(fleet, Desired(spec, chosen, "bench", again), report)

    keep()
    minutes = duration(2 * (time.monotonic() - began))
    downtime = duration(2 * (found.start_s or other.playbook.ready_timeout_s))
    report.note(f"{change} restarts all groups twice: about {downtime} of downtime, {minutes} of measuring")
    if not job.yes and not report.confirm("switch to B and back?"):
        raise UsageError(f"nothing was stopped; run {kept[0].id} is kept", hint="answer y, or add --yes")
    job = dataclasses.replace(job, yes=True)  # no questions while B serves
    _interrupt_by_any_end()
    try:
        switch(other)
        keep(change)
        switch(target.spec, target)
    except (KeyboardInterrupt, Exception) as error:  # including bugs
        try:
            with contextlib.suppress(OSError):  # the terminal was closed
                report.failed()
            switch(target.spec, target)
        except (KeyboardInterrupt, SparkclusterError) as failed:
            said, why = (str(each) or "interrupted" for each in (error, failed))
            text, hint = f"release {number} does not serve again: {why}", f"sparkcluster rollback INVENTORY {number}"
            raise SparkclusterError(f"{said}; {text}", step="rollback", hint=hint) from failed
        report.note(f"release {number} serves again")
        raise
    keep()
    for each in kept:
        each.pair = [run.id for run in kept]
        save(each)
    same = [sum(kept[0].answers.get(key) == text for key, text in each.answers.items()) for each in kept]
    report.note(f"greedy answers: B equals A in {same[1]} of {same[0]}, A again in {same[2]} of {same[0]}")
    return kept


def _on_demand(spec: Spec) -> dict[str, str]:
    """Names of the inventory's on-demand models, by cluster."""
    models = load_all(spec.inventory_path, starts=False) if spec.model else []
    return {each.inventory.cluster: each.model for each in models if each.idle_s is not None}


def _interrupt_by_any_end() -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that A is restored."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is signal.SIG_DFL:
            signal.signal(ending, signal.default_int_handler)


def _with(spec: Spec, change: str) -> Spec:
    """``spec`` of a release with ``change`` in its playbook; not accepted.

    Raises:
        UsageError, SpecError: the key or the value is invalid.
    """
    entry = read(change, "--ab")
    written = Document(str(spec.playbook_path), spec.playbook.model_dump(mode="json", exclude_defaults=True))
    document = Assignments([entry]).put(written)
    playbook, problems = validate(document, Playbook)
    problems += check_playbook.check(playbook, document) if playbook else []
    if problems or playbook is None:
        raise SpecError(problems)
    if entry.key.partition(".")[0] in {"image", "build"}:
        spec = dataclasses.replace(spec, kept_image_name=None, image_build="")
    selected = {**spec.selected, entry.key: entry.value}
    return dataclasses.replace(spec, playbook=playbook, bundled=False, selected=selected)
