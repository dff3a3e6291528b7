"""The protocol between the controller and a worker: JSON documents in lines over SSH.

The controller starts ``node.worker`` with ``copy_request.begin_request``. That program starts the node's worker for
this job, or adopts a running one, and follows it. Its input is the controller's orders, its output is ``WorkerLine``
lines. The end of the input ends the program, not the worker.

1. The controller starts on all nodes; the first lines of each input are the list of files (``files_lines``).
2. Each worker sends ``ports`` with its ``token`` and ``cert`` (of the job that was adopted, if any), then ``lacks``
   and ``room``.
3. Order ``look``: ``[{node, address, port, token, cert}]``, with ``cert`` if TLS is used. The worker connects to all of
   these addresses at the same time, and sends in ``reached``, by node, the addresses that proved their token.
4. Order ``from``: ``[{node, ways: [{address, port, token, cert}], medium}]``, in order of preference. The worker pulls
   from the first source that works, and switches to the next if that breaks or has nothing new for long. It serves the
   files that it has. The ways of an entry share its streams; a node may be in several entries, with other media.
   Nothing is received before this order. Each second the worker sends ``bytes`` and the related keys.
5. Order ``sha256``: hashes of files whose content was unknown, by number, from a node that had them from the start.
   These files are renamed only then.
6. ``done``: the worker has every file. It continues to serve until the order ``end``. The order ``cancel`` ends it
   immediately; files that arrived are kept. ``failed`` and ``refused`` are its last lines.

A line or an order may have several of these keys, also earlier ones: the last value of each counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field

from sparkcluster.facts.base import Fact, Few, Number, Path, Port, Sha256
from sparkcluster.report import Medium
from sparkcluster.staging.copy import Answer

Address = Annotated[str, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$")]
Token = Annotated[str, Field(pattern="^[0-9a-f]{32,64}$")]
Certificate = Annotated[
    str, Field(pattern="^-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+-----END CERTIFICATE-----\n$")
]
Numbered = dict[Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,9})$")], Sha256]
"""SHA-256 by the number of the file: its line in the list, from 0."""


class Room(Fact):
    """Free and needed bytes on the disk of ``path``."""

    free: Number
    needed: Number
    path: Path


class FailedSource(Fact):
    """A node that is no longer a source, or one failed ``address`` of it while others work."""

    node: str
    address: Address | None = None
    why: str


class Wrong(Fact):
    """A file that arrived with a wrong SHA-256, and is received again."""

    file: Number
    source: Annotated[str, Field(alias="from")]


class WorkerLine(Answer):
    """A line of a worker; ``bytes`` counts the listed files that are complete or growing.

    Attributes:
        ports: ports of its listeners, by address; sent together with ``token`` and ``cert``.
        lacks: number of listed files that were missing or incomplete at the start.
        reached: by node in the order ``look``, the addresses that proved their token.
        source: ``from`` in the document; the current source, and ``medium`` of its entry.
        left: the last sources, or addresses of them, that failed since the order ``from``.
        wrong: the last files that arrived corrupt.
        kept: new paths of the last files of the user that were replaced.
        sha256: hashes of files that this node was the first to read.
    """

    ports: dict[Address, Port] | None = None
    token: Token | None = None
    cert: Certificate | None = None
    lacks: Number | None = None
    room: Room | None = None
    reached: dict[str, Few[Address]] | None = None
    source: Annotated[str | None, Field(alias="from")] = None
    medium: Medium | None = None
    left: tuple[FailedSource, ...] = ()
    wrong: tuple[Wrong, ...] = ()
    kept: tuple[Path, ...] = ()
    sha256: Numbered | None = None

    @property
    def lacked(self) -> bool:
        """Whether it lacked something at the start, or has not reported yet."""
        return self.lacks != 0


def files_lines(files: Iterable[dict[str, Any]]) -> bytes:
    """The list of files for a worker: one document per line; the number of a file is its line.

    Keys as in ``Manifest.files``: ``path``, ``size``, ``mtime`` (ns), ``sha256`` or null, and ``links``.
    """
    return b"".join(json.dumps(file).encode() + b"\n" for file in files)
