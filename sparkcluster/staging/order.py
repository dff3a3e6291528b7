"""The documents between the controller and a worker, as JSON in lines over SSH.

The controller starts ``node.worker`` with ``copy_request.begin_request``. That starts the node's worker for this job or
adopts the one that runs, then follows it: what the controller writes to its input are orders, what it prints are
``WorkerLine`` lines. The end of the input ends the follower, not the worker.

1. The controller begins on all nodes; the first lines of each input are the list of files (``files_lines``).
2. Each worker says ``ports`` with its ``token`` and ``cert``, which are those of the job that it adopted if there was
   one, then ``lacks`` and ``room``.
3. Order ``look``: ``[{node, address, port, token, cert}]``, ``cert`` of those under TLS. The worker connects to all of
   these ways at once, and says in ``reached`` by each node which of its addresses proved their token.
4. Order ``from``: ``[{node, ways: [{address, port, token, cert}], medium}]``, in order of preference. The worker pulls
   from the first that works, goes to the next one by itself where that breaks or has nothing new for long, and serves
   what it has. The ways of an entry share its streams; a node may be in several, by other media. Nothing is received
   before this order. Each second the worker says ``bytes`` with all that belongs to it.
5. Order ``sha256``: content of files that nobody knew, by number, as a node read them that had them from the start;
   they are renamed only then.
6. ``done``: it has every file. It serves on until the order ``end``. At the order ``cancel`` it ends at once, and what
   arrived stays. ``failed`` and ``refused`` are its last lines.

A line, or an order, may have several of these, also what was said before: the last value of each counts.
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
    """A node that no longer is pulled from, or one ``address`` of it that failed while others work."""

    node: str
    address: Address | None = None
    why: str


class Wrong(Fact):
    """A file that arrived with another SHA-256 than it should have, and is received again."""

    file: Number
    source: Annotated[str, Field(alias="from")]


class WorkerLine(Answer):
    """One line of a worker; ``bytes`` are those of the list that are there and whole or growing.

    Attributes:
        ports: of its listeners, by address; ``token`` and ``cert`` come with it.
        lacks: how many files of the list were not there, or not whole, when it began.
        reached: by node of the order ``look`` its addresses that proved their token.
        source: ``from`` in the document; whom it pulls from now, and ``medium`` by which of its entries.
        left: the last sources, or addresses of them, that it left since the order ``from``.
        wrong: the last files that arrived corrupt.
        kept: the last files of the user's that others were put in the place of, as they are called now.
        sha256: content of files, where this source was the first to read them.
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
        """Whether it lacked something when it began, or has not said yet."""
        return self.lacks != 0


def files_lines(files: Iterable[dict[str, Any]]) -> bytes:
    """The list of files as a worker reads it: one document in each line, the number of a file is its line.

    ``path``, ``size``, ``mtime`` (ns), ``sha256`` or null, and ``links``, as ``Manifest.files`` has them.
    """
    return b"".join(json.dumps(file).encode() + b"\n" for file in files)
