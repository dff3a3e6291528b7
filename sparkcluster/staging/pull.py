"""Downloads on a node, an image or weights, and builds of images, which outlive this connection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from sparkcluster.errors import HostSilent, SparkclusterError, StageError
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.program import stream
from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.copy import Answer, Done, Failure, Report, Step, follow, stage_errors

_CANCEL_S = 5


def run_job(
    step: Step,
    host: Host,
    program: str,
    request: Request,
    report: Report = lambda _done, _total: None,
    *,
    heard: Callable[[Answer], None] = lambda _: None,
) -> Done | Failure:
    """The end of a job on ``host`` that ``program`` (pull, fetch or build) starts or follows.

    Ctrl-C ends the job unless another command follows it.

    Raises:
        StageError: the node fell silent, and the job goes on; or it was stopped.
        LeaseLost: another operator has the lease.
    """
    whole = {**request, **step.lease(host.name), "do": "run"}
    try:
        with stage_errors(step, host.name), stream(host, program, whole) as running:
            return follow(step, host.name, running, report, heard)
    except (StageError, KeyboardInterrupt) as error:
        if error.__cause__ is None:
            with contextlib.suppress(SparkclusterError), stream(host, program, {**whole, "do": "cancel"}) as running:
                next(running.lines(_CANCEL_S), None)
        elif isinstance(error, StageError) and isinstance(error.__cause__, HostSilent):
            error.hint = f"the {program} continues on {host.name}: run this again to follow it"
        raise
