"""``preflight --hash``: SHA-256 of the weights on every node at once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sparkcluster.errors import CommandFailed, CommandTimeout
from sparkcluster.facts.base import Fact, Many, read
from sparkcluster.facts.hashes import HashedFile, Hashes
from sparkcluster.facts.model import Facts
from sparkcluster.facts.record import Number
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.conversation import Conversation, Conversations
from sparkcluster.hosts.fleet import Fleet, failures, values
from sparkcluster.report import Report, count

THREADS = 4
_SILENT_S = 30  # it speaks every second, unless a disk hangs
_START_S = 60
_LEAST_BYTES_S = 50e6  # a disk slower than this is not worth waiting for


class Said(Fact):
    """How far the program is, the hashes, or why there are none."""

    bytes: Number = 0
    total: Number = 0
    done: Many[HashedFile] | None = None
    failed: str | None = None


def hashes(fleet: Fleet, facts: Mapping[str, Facts], report: Report, choice: Mapping[str, Any] | None = None) -> Hashes:
    """Hash what ``choice`` serves on every node that has any, as its facts say; the others are passed over."""
    weights = {name: read(node_facts.weights) for name, node_facts in facts.items()}
    places = {name: found for name, found in weights.items() if found is not None and found.path}
    if not places:
        return Hashes({})
    size = max(found.size_bytes for found in places.values())
    report.step("hash", f"{_sized(size)} on {count(len(places), 'node')}")

    def ask(host: Host) -> tuple[HashedFile, ...]:
        request = {"path": places[host.name].path, "choice": choice, "threads": THREADS}
        conversation = programs.start(host, request, silence_s=_SILENT_S)
        return _files(conversation, report, limit_s=_limit_s(places[host.name].size_bytes))

    with Conversations("hashes") as programs:
        outcomes = fleet.each(ask, list(places), limit_s=_limit_s(size) + _SILENT_S)
    return Hashes(values(outcomes), {name: error.message for name, error in failures(outcomes).items()})


def _sized(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.1f} MB"


def _limit_s(size_bytes: int) -> float:
    return _START_S + size_bytes / _LEAST_BYTES_S


def _files(conversation: Conversation, report: Report, *, limit_s: float) -> tuple[HashedFile, ...]:
    name, limit = conversation.host.name, time.monotonic() + limit_s
    while True:
        said = conversation.answer(Said)
        if said.done is not None:
            return said.done
        if said.failed is not None:
            raise CommandFailed(f"the weights on {name} could not be read: {said.failed}", node=name, step="hash")
        report.progress(name, f"{_sized(said.bytes)} of {_sized(said.total)} hashed")
        if time.monotonic() > limit:
            raise CommandTimeout(
                f"the weights on {name} were not hashed within {limit_s:.0f} s", node=name, step="hash"
            )
