"""``preflight --hash``: SHA-256 of the weights on every node, in parallel."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sparkcluster.errors import CommandFailed
from sparkcluster.facts.base import Fact, Number, Sha256, read
from sparkcluster.facts.between import HashedFile, Hashes
from sparkcluster.facts.model import Facts
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet, failures, values
from sparkcluster.hosts.program import Conversation, Conversations
from sparkcluster.report import Report, count, share, size

_SHA256 = re.compile("[0-9a-f]{64}")
_SNAPSHOT = re.compile("(.+)/snapshots/([0-9A-Za-z]{1,64})")
_SILENT_S = 30  # it reports every second, unless a disk hangs
_START_S = 60
_LEAST_BYTES_S = 50e6  # a disk slower than this is not worth waiting for


class Listed(Fact):
    """A file listed by ``node.listing``."""

    name: str
    size: Number
    sha256: Sha256
    blob: str | None = None


class Progress(Fact):
    """One message of the program: progress, one file, the end of the list, or a failure."""

    bytes: Number = 0
    total: Number = 0
    file: Listed | None = None
    done: dict[str, Any] | None = None
    failed: str | None = None


def hashes(fleet: Fleet, facts: Mapping[str, Facts], report: Report, choice: Mapping[str, Any] | None = None) -> Hashes:
    """Hash the weights of ``choice`` on every node that has them, according to its facts; other nodes are skipped."""
    weights = {name: read(node_facts.weights) for name, node_facts in facts.items()}
    places = {name: found for name, found in weights.items() if found is not None and found.path}
    if not places:
        return Hashes({})
    most = max(found.size_bytes for found in places.values())
    report.step("hash", f"{size(most)} on {count(len(places), 'Spark')}")

    def ask(host: Host) -> tuple[HashedFile, ...]:
        path = places[host.name].path or ""
        snapshot = _SNAPSHOT.fullmatch(path)  # in the hub's cache; else a directory
        place = {"root": snapshot[1], "revision": snapshot[2]} if snapshot else {"root": path}
        request = {**place, "verify": True, "choice": choice}
        return _files(programs.start(host, request, silence_s=_SILENT_S), report)

    with Conversations("listing") as programs:
        outcomes = fleet.each(ask, list(places), limit_s=_START_S + most / _LEAST_BYTES_S)
    return Hashes(values(outcomes), {name: error.message for name, error in failures(outcomes).items()})


def _files(conversation: Conversation, report: Report) -> tuple[HashedFile, ...]:
    name = conversation.host.name
    found: list[HashedFile] = []
    while (answer := conversation.answer(Progress)).done is None:
        if answer.failed is not None:
            raise CommandFailed(f"the weights on {name} could not be read: {answer.failed}", node=name, step="hash")
        if (file := answer.file) is not None:
            blob = file.blob if file.blob and _SHA256.fullmatch(file.blob) else None
            found.append(HashedFile(file.name, file.size, file.sha256, blob))
        else:
            report.progress(name, f"{share(answer.bytes, answer.total)} hashed")
    return tuple(found)
