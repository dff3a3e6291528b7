"""Downloads on a node, an image or weights, and builds of images, which outlive this connection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from sparkcluster.errors import HostSilent, SparkclusterError, StageError
from sparkcluster.hosts.base import Host, Stream
from sparkcluster.hosts.program import stream
from sparkcluster.report import share
from sparkcluster.runtime import observed
from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.copy import (
    Answer,
    Done,
    Failure,
    Pulling,
    Report,
    Step,
    answers,
    failure_of,
    stage_errors,
    unfinished,
)

_CANCEL_S = 5


def pull(step: Step, host: Host, request: Request, report: Callable[[Pulling], None]) -> Done | Failure:
    """The end of a pull on ``host``, by a ``request`` of its reference.

    Ctrl-C ends the pull unless another command follows it.

    Raises:
        StageError: the node fell silent; the pull goes on.
        LeaseLost: another operator has the lease.
    """

    def reported(last: Answer) -> None:
        if last.pull is not None:
            report(last.pull)

    ended = _job(step, host, "pull", request, reported)
    outcome = ended.text if isinstance(ended, Failure) else "pulled"
    cluster = str(step.lease(host.name)["cluster"])
    observed.note(cluster, "pull", node=host.name, outcome=outcome)
    return ended


def fetch(step: Step, host: Host, request: Request, report: Report) -> Done | Failure:
    """The end of a download of weights on ``host``, likewise."""

    def reported(last: Answer) -> None:
        if last.bytes is not None:
            report(last.bytes, last.total)

    return _job(step, host, "fetch", request, reported)


def build(step: Step, host: Host, request: Request, report: Callable[[Answer], None]) -> Done | Failure:
    """The end of a build of an image on ``host``, likewise."""
    return _job(step, host, "build", request, report)


def _job(step: Step, host: Host, program: str, request: Request, report: Callable[[Answer], None]) -> Done | Failure:
    """The end of a job on ``host`` that ``program`` starts or follows."""
    what = {"pull": "pull", "fetch": "download", "build": "build"}[program]

    whole = {**request, **step.lease(host.name), "do": what}
    try:
        with stage_errors(step, host.name), stream(host, program, whole) as running:
            return _follow(step, host.name, running, report)
    except (StageError, KeyboardInterrupt) as error:
        if step.stopped() or isinstance(error, KeyboardInterrupt):
            with contextlib.suppress(SparkclusterError), stream(host, program, {**whole, "do": "cancel"}) as running:
                next(running.lines(_CANCEL_S), None)
        elif isinstance(error.__cause__, HostSilent):
            error.hint = f"the {what} continues on {host.name}: run this again to follow it"
        raise


def _follow(step: Step, node: str, running: Stream, report: Callable[[Answer], None]) -> Done | Failure:
    for last in answers(step, node, running):
        if step.stopped():
            raise StageError(f"{step.name} was stopped", node=node, step=step.name)
        report(last)
        if last.done is not None:
            return last.done
        if last.failed is not None or last.refused is not None:
            return failure_of(node, last)
    return unfinished(node, running)


def text(found: Pulling, *, containerd: bool) -> str:
    """How far a pull is, in words."""
    if found.phase == "resolve":
        return "resolving the image at its registry"
    if found.phase == "unpack":
        of = f"{found.layers} of " if found.layers else ""
        return f"unpacking {of}{found.layers_total} layers of the image"
    parts = [f"pulling {share(found.bytes, found.total or 0)}", f"{found.layers} of {found.layers_total} layers"]
    parts.append(f"{found.rate_bytes_s / 1e6:.{0 if found.rate_bytes_s >= 1e7 else 1}f} MB/s")
    if found.remaining_s is not None:
        minutes, seconds = divmod(found.remaining_s, 60)
        parts.append(f"{minutes} min left" if minutes > 1 else f"{60 * minutes + seconds} s left")
    if found.earlier_bytes:
        kept = "resumed" if containerd else "unfinished layers of an earlier pull started over (moby#26146)"
        parts.append(kept)
    return ", ".join(parts)
