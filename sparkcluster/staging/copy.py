"""Follows staging programs on nodes, validates their output, and turns failures into errors."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from sparkcluster.answers import checked
from sparkcluster.errors import HostError, HostSilent, ImageIncomplete, LayersAbsent, StageError
from sparkcluster.facts.base import Fact, Few, Measure, Number, Path
from sparkcluster.facts.release_record import ImageId
from sparkcluster.hosts.base import SILENT_S, Host, Stream
from sparkcluster.hosts.program import document, stream
from sparkcluster.printable import one_line, word
from sparkcluster.runtime.change import refusal
from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.manifest import MOST_FILES, BadAnswer, ListedFile, Manifest

A = TypeVar("A", bound="Answer")

HERE = "this machine"
VERIFY = "sparkcluster stage INVENTORY weights --verify"
RESUME = "retry: it resumes where it stopped"
"""Hint for failures without a better one."""
_STUCK_S = 3600  # docker load and hashing report no progress for up to 20 minutes

OnBytes = Callable[[int, int], None]
Progress = Callable[[str, str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """The step that a program on a node belongs to, such as ``stage weights``.

    Attributes:
        lease: the lease in requests to a node.
        stopped: whether the step was stopped.
    """

    name: str
    lease: Callable[[str], dict[str, Any]]
    stopped: Callable[[], bool]


@contextlib.contextmanager
def stage_errors(step: Step, node: str) -> Iterator[None]:
    """Turn a HostError into a StageError with node and step."""
    try:
        yield
    except HostError as error:
        raise StageError(
            f"{step.name} on {error.node or node}: {error.message}",
            node=error.node or node,
            step=step.name,
            hint=RESUME if isinstance(error, HostSilent) else error.hint or RESUME,
        ) from error


class Done(Fact):
    """The result of a download or copy.

    Attributes:
        bytes: how many were downloaded or copied.
        seconds: of a copy, from its first byte until its last file was renamed.
        left_out_bytes: size of the files that are not served.
        whole: whether the complete repository was downloaded, since the hub did not list it.
        kept: the new path of a user's file that was replaced.
        image_id: of an image that was loaded.
    """

    bytes: Number = 0
    seconds: Measure = 0.0
    left_out_bytes: Number = 0
    whole: bool = False
    kept: Path | None = None
    image_id: ImageId | None = None


class Answer(Fact):
    """A line of a staging program: progress, a file that it lists, or the end.

    Attributes:
        offset: how much of a file the node already has.
        log: the last lines of a build's output.
        failed: the error message; ``kind`` as in ``stage_error``.
        refused: the lease is over.
    """

    bytes: Number | None = None
    total: Number = 0
    offset: Number | None = None
    file: ListedFile | None = None
    done: Done | None = None
    log: Few[str] = ()
    failed: str | None = None
    kind: str = "other"
    refused: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A failure of a program on a node; ``kind`` as named by the program."""

    node: str
    kind: str
    text: str


def list_files(step: Step, source: Host, request: Request, report: OnBytes, *, program: str = "listing") -> Manifest:
    """The validated list of files that ``source`` has for ``request``; its ``files`` are sent to the receivers.

    A ``program`` of the node lists them. A blob's content may differ from its name (``staging.trust``).

    Raises:
        StageError: it cannot read them, or the list is not plausible.
        LeaseLost: it has a newer epoch.
    """
    listing = {**request, **step.lease(source.name)}
    found: list[ListedFile] = []

    def heard(last: Answer) -> None:
        if last.file is not None:
            found.append(last.file)
        if len(found) > MOST_FILES:
            raise BadAnswer(f"the directory has more than {MOST_FILES} files")

    try:
        with stage_errors(step, source.name), stream(source, program, listing) as running:
            done = follow(step, source.name, running, report, heard)
        if isinstance(done, Failure):
            raise stage_error(step, done)
        manifest = Manifest.of(found, request.get("revision"))
    except BadAnswer as error:
        raise stage_error(step, Failure(source.name, "source", str(error))) from None
    if not found:
        raise stage_error(step, Failure(source.name, "source", "the list of files is missing"))
    return manifest


def follow(
    step: Step, node: str, running: Stream, report: OnBytes, heard: Callable[[Answer], None] = lambda _: None
) -> Done | Failure:
    """The result of a program; ``report`` gets its progress, ``heard`` every line.

    Raises:
        StageError: it was stopped, or made no progress for too long.
        LeaseLost: the node refused the change.
        HostError: the connection broke, or the answer is malformed.
    """
    moved, since = None, time.monotonic()
    for last in answers(step, node, running, Answer):
        if isinstance(last, Failure):
            return last
        if step.stopped():
            raise StageError(f"{step.name} was stopped", node=node, step=step.name)
        if last.bytes is None or last.bytes != moved:
            moved, since = last.bytes, time.monotonic()
        if time.monotonic() - since > _STUCK_S:
            why = f"{step.name} on {node}: no progress for {_STUCK_S / 60:.0f} min"
            raise StageError(why, node=node, step=step.name, hint=RESUME)
        if last.bytes is not None:
            report(last.bytes, last.total)
        heard(last)
        if last.done is not None:
            return last.done
    return Failure(node, "other", running.finish().reason)


def answers(
    step: Step, node: str, running: Stream, kind: type[A], silence_s: float = SILENT_S
) -> Iterator[A | Failure]:
    """The output of a program on ``node``, up to its end or a Failure.

    Raises:
        LeaseLost: the node refused the change.
        HostError: the connection broke, nothing arrived for ``silence_s`` seconds, or the answer is malformed.
    """
    for line in running.lines(silence_s):
        found = document(line)
        if found is None:
            yield Failure(node, "other", f"unexpected output: {one_line(line[:80].decode(errors='replace'))}")
            return
        last = checked(kind, found, node=node, step=step.name)
        if last.refused is not None:
            raise refusal(node, last.refused, step.name)
        if last.failed is not None:
            yield Failure(node, last.kind, last.failed)
            return
        yield last


def stage_error(step: Step, failure: Failure, *, source: str = "") -> StageError:
    """The StageError for a failure, with a hint; ``source`` is the node that the data came from, if known."""
    path, source = word(failure.text.rpartition(": ")[2]), source or failure.node
    hints = {
        "disk": f"{'sparkcluster models INVENTORY --prune; or ' * ('weights' in step.name)}df -h   on {failure.node}",
        "permission": f"ls -ld {path}   on {failure.node}, and sparkcluster preflight INVENTORY",
        "tree": f"mv {path} {path}.old   on {failure.node}",
        "docker": f"docker info   on {failure.node}",
        "hash": f"{VERIFY}   checks every copy and names the corrupt one",
        "blobs": f"docker image rm IMAGE and the images that share its layers, then docker pull IMAGE   on {source}",
        "archive": f"docker image rm --force IMAGE   on {source}, then retry",
        "unreached": f"ping from {failure.node} to {source}, and sudo ufw status on both",
        "source": f"{VERIFY}   once {failure.node} is repaired",
    }
    if source == HERE:  # a local file does not have the expected content
        hints |= dict.fromkeys(("archive", "hash"), "create the file again at its origin, then retry")
    elif "weights" not in step.name:
        hints |= dict.fromkeys(("source", "hash"), RESUME)
    comes = source != failure.node and failure.kind in {"archive", "blobs", "link", "partial"}
    between = f" from {source}" if comes else ""
    full = "the disk is full: " if failure.kind == "disk" else ""
    errors = {"blobs": ImageIncomplete, "partial": LayersAbsent}
    return errors.get(failure.kind, StageError)(
        f"{step.name} on {failure.node}{between}: {full}{failure.text}",
        node=failure.node,
        step=step.name,
        hint=hints.get(failure.kind, RESUME),
    )
