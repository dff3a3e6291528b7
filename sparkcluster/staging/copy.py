"""One copy from one node to another: two relays, a token, and what their failures mean."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

from sparkcluster.errors import CommandTimeout, HostError, LeaseLost, StageError
from sparkcluster.hosts.base import Host, Stream
from sparkcluster.hosts.program import stream
from sparkcluster.staging.retries import RESUME

# The relays speak every second and give each other up after 15 s without progress.
_SILENT_S = 60
_START_S = 30

Tell = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Errand:
    """What every relay is told, and what it is about in words.

    Attributes:
        step: as ``stage weights``.
        lease: state_dir, cluster and epoch.
        stopped: says whether to give up.
    """

    step: str
    lease: dict[str, Any]
    stopped: Callable[[], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """How a program on a node ended, where that was not well; ``kind`` as the program names it."""

    node: str
    kind: str
    text: str


def copy(
    errand: Errand,
    source: Host,
    target: Host,
    *,
    address: str,
    requests: tuple[dict[str, Any], dict[str, Any]],
    tell: Tell,
) -> dict[str, Any]:
    """Copy by ``requests`` (of sender and receiver) over ``address`` of the source.

    Returns:
        What the receiver says of it: ``bytes`` that moved; of an image also ``image_id``.

    Raises:
        StageError: with the node whose fault it is, and the cause.
        LeaseLost: a node knows a newer epoch.
    """
    token = secrets.token_hex(16)
    common = {**errand.lease, "address": address, "token": token}
    with (
        ends(errand, source.name),
        stream(source, "relay", {**requests[0], **common, "do": "send"}) as sender,
    ):
        heard = documents(sender, _START_S)
        first = next(heard, {})
        if "port" not in first:
            raise explain(errand, failure_of(source.name, first))
        asked = {**requests[1], **common, "do": "receive", "port": first["port"]}
        with ends(errand, target.name), stream(target, "relay", asked) as receiver:
            done = follow(errand, target.name, receiver, tell)
        if isinstance(done, Failure):
            theirs = _other_side(source.name, heard) if done.kind == "link" else None
            raise explain(errand, theirs or done, source=source.name, target=target.name, address=address)
    return done


def follow(errand: Errand, node: str, running: Stream, tell: Tell) -> dict[str, Any] | Failure:
    """What a program came to; on the way, how far it is goes to ``tell``.

    Raises:
        LeaseLost: the node refuses the change.
        HostError: the connection broke.
    """
    last: dict[str, Any] = {}
    for last in documents(running, _SILENT_S):
        if errand.stopped():
            raise StageError(f"{errand.step} was stopped", node=node, step=errand.step)
        if "bytes" in last:
            tell(int(last["bytes"]), int(last.get("total", 0)))
        if "done" in last:
            return dict(last["done"])
    if "failed" not in last and "refused" not in last:
        with contextlib.suppress(HostError):
            said = running.finish().stderr.decode(errors="replace").strip().splitlines()
            last = {"failed": said[-1] if said else "it ended without a word", "kind": "other"}
    return failure_of(node, last)


def failure_of(node: str, document: dict[str, Any]) -> Failure:
    """The failure that ``document`` tells of; LeaseLost where the node refused."""
    if "refused" in document:
        raise LeaseLost(
            f"{node} refuses the change: {document['refused']}",
            node=node,
            hint="another operator took over; see who with sparkcluster status, then run this again",
        )
    return Failure(node, str(document.get("kind", "other")), str(document.get("failed", "it did not begin")))


def documents(running: Stream, silence_s: float) -> Iterator[dict[str, Any]]:
    """What a program says, line by line; words that are no document are passed over."""
    for line in running.lines(silence_s):
        with contextlib.suppress(ValueError):
            document = json.loads(line)
            if isinstance(document, dict):
                yield document


@contextlib.contextmanager
def ends(errand: Errand, node: str) -> Iterator[None]:
    """Turn a lost connection into the StageError that names node and step."""
    try:
        yield
    except HostError as error:
        raise StageError(
            f"{errand.step} on {error.node or node}: {error.message}",
            node=error.node or node,
            step=errand.step,
            hint=error.hint or RESUME,
        ) from error


def _other_side(node: str, heard: Iterator[dict[str, Any]]) -> Failure | None:
    """The cause that the sender knows, where all that the receiver saw is a connection that ended."""
    limit = time.monotonic() + 3
    try:
        for document in heard:
            if "failed" in document or "refused" in document:
                failure = failure_of(node, document)
                return failure if failure.kind != "link" else None
            if time.monotonic() > limit:
                return None
    except CommandTimeout:
        return None
    except HostError as error:
        return Failure(node, "lost", error.message)
    return Failure(node, "lost", f"the sender on {node} ended without a word")


def explain(errand: Errand, failure: Failure, *, source: str = "", target: str = "", address: str = "") -> StageError:
    """A StageError that says what to type."""
    path = failure.text.rpartition(": ")[2]
    hints = {
        "disk": f"df -h   on {failure.node}",
        "permission": f"sudo chown -R $USER {path}   on {failure.node}",
        "docker": f"docker info   on {failure.node}",
        "link": f"ping {address}   on {target}, and sudo ufw status   on both" if address else RESUME,
        "hash": f"check the disks of {source} and {target}",
        "source": f"sparkcluster stage INVENTORY weights --verify, after mending {failure.node}",
    }
    between = f" from {source} at {address}" if failure.kind == "link" and source else ""
    words = "the disk is full: " if failure.kind == "disk" else ""
    return StageError(
        f"{errand.step} on {failure.node}{between}: {words}{failure.text}",
        node=failure.node,
        step=errand.step,
        hint=hints.get(failure.kind, RESUME),
    )
