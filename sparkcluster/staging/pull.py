"""Pulls an image on a node, where the pull outlives this connection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from sparkcluster.errors import CommandTimeout, HostLost, SparkclusterError, StageError
from sparkcluster.hosts.base import Host, Stream
from sparkcluster.hosts.program import stream
from sparkcluster.runtime import observed
from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.copy import (
    SILENT_S,
    Done,
    Failure,
    Pulling,
    Step,
    answers,
    failure_of,
    stage_errors,
    unfinished,
)

_CANCEL_S = 5


def pull(step: Step, host: Host, request: Request, report: Callable[[Pulling], None]) -> Done | Failure:
    """The end of a pull on ``host``, by a ``request`` of its reference and images_dir.

    A connection that breaks is made again, as long as each brings news. Ctrl-C ends the pull.

    Raises:
        StageError: the connection broke; the pull goes on.
        LeaseLost: the node refuses the change; a pull under way goes on.
    """
    whole = {**request, **step.lease(host.name), "do": "pull"}
    news, gaps = True, observed.Gaps()

    def reported(found: Pulling) -> None:
        nonlocal news
        news = True
        gaps.seen(found.phase, (found.bytes, found.layers))
        report(found)

    while True:
        try:
            with stage_errors(step, host.name), stream(host, "pull", whole) as running:
                ended = _follow(step, host.name, running, reported)
            break
        except StageError as error:
            if not isinstance(error.__cause__, HostLost | CommandTimeout):
                raise
            if not news:
                error.hint = f"the pull goes on on {host.name}: run this again to follow it"
                raise
            news = False
        except KeyboardInterrupt:
            with contextlib.suppress(SparkclusterError), stream(host, "pull", {**whole, "do": "cancel"}) as running:
                next(running.lines(_CANCEL_S), None)
            raise
    outcome = ended.text if isinstance(ended, Failure) else "pulled"
    observed.note(str(whole["cluster"]), "pull", node=host.name, outcome=outcome, longest_gap_s=gaps.longest_s)
    return ended


def _follow(step: Step, node: str, running: Stream, report: Callable[[Pulling], None]) -> Done | Failure:
    for last in answers(step, node, running, SILENT_S):
        if last.pull is not None:
            report(last.pull)
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
    of = f" of {found.total / 1e9:.2f}" if found.total else ""
    parts = [f"pulling {found.bytes / 1e9:.2f}{of} GB", f"{found.layers} of {found.layers_total} layers"]
    parts.append(f"{found.rate_bytes_s / 1e6:.{0 if found.rate_bytes_s >= 1e7 else 1}f} MB/s")
    if found.remaining_s is not None:
        minutes, seconds = divmod(found.remaining_s, 60)
        parts.append(f"{minutes} min left" if minutes > 1 else f"{60 * minutes + seconds} s left")
    if found.earlier_bytes:
        kept = "resumed" if containerd else "unfinished layers of an earlier pull started over (moby#26146)"
        parts.append(kept)
    return ", ".join(parts)
