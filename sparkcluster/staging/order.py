"""The documents between the controller and a worker (``node.relay``), as JSON in lines over SSH.

The controller starts ``relay`` with ``do: begin``. That request (``Begin``) starts the node's worker for this job or
adopts the one that runs, then follows it: what the controller writes to its input are ``Order`` lines, what it prints
are ``WorkerLine`` lines. An order is desired state, so that it may be sent twice; the end of the input ends the
follower, not the worker.

1. The controller brings the list of files (``files_lines``) to ``files_path`` on every node, then begins on all.
2. Each worker says ``ports`` with its ``token`` and ``cert``, which are those of the job that it adopted if there was
   one, then ``lacks`` and ``room``. Nothing is received before an order ``from``.
3. Order ``look``: each connects to all of these ways at once and says in ``reached`` which address proved its token.
   It is ordered again, with another ``round``, when a node is left while files are copied.
4. Order ``from``: nearest first; the worker pulls from the first that works, and serves what it has. Each second it
   says ``bytes`` with all that belongs to it.
5. ``done``: it has every file. It serves on until the order ``end``. ``failed`` and ``refused`` are its last lines.

A line may have several of these, also what was said before: the last value of each counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from sparkcluster.facts.base import Fact, Few, Measure, Number, Path, Port, Raw, Sha256

Request = dict[str, Any]

FILES_NAME = "files.jsonl"

Address = Annotated[str, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$")]
Token = Annotated[str, Field(pattern="^[0-9a-f]{32,64}$")]
Certificate = Annotated[
    str, Field(pattern="^-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+-----END CERTIFICATE-----\n$")
]
Numbered = dict[Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,9})$")], Sha256]
"""SHA-256 by the number of the file: its line in the list, from 0."""


class Listen(Fact):
    """An address to listen on; with ``tls`` for those alone who have the certificates."""

    address: Address
    tls: bool = False


class Begin(Fact):
    """How a worker begins; its request also has the lease, and what the artifact adds (``root``, ``revision``, …).

    Attributes:
        node: as the others know it.
        key: of the job, see ``key``; its directory is ``state_dir/clusters/CLUSTER/staging/KEY``.
        token: what the dialers of this worker must know.
        cert: certificate of this worker, in PEM; None where nothing listens under TLS.
        private_key: belongs to ``cert``; the worker keeps it in memory alone.
        limit_bytes_s: the most that it sends, over all connections.
        files_sha256: of the list of files.
    """

    what: Literal["files", "image"] = "files"
    node: str
    key: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    listen: tuple[Listen, ...]
    token: Token
    cert: Certificate | None = None
    private_key: Raw | None = None
    limit_bytes_s: int | None = None
    files_sha256: Sha256 | None = None


class Dial(Fact):
    """How one worker reaches another: ``cert`` is the other's under TLS, and ours then is the one of ``Begin``."""

    address: Address
    port: Port
    token: Token
    cert: Certificate | None = None


class DialAttempt(Dial):
    """A way to try, to ``node``."""

    node: str


class Source(Fact):
    """A node to pull from. The first of its ``ways`` that works is taken; several rails share the streams."""

    node: str
    ways: tuple[Dial, ...]


class Order(Fact):
    """One line to a worker; what is None is not in it.

    Attributes:
        look: connect to all of them, and say who proved its token; once for each ``round``, its number.
        sources: ``from`` in the document; nearest first, the rest are for when it fails.
        readers: ``to`` in the document; who pulls from it, for whom it keeps the beginning of a stream.
        certs: those of all workers of the job, which may dial a listener under TLS.
        sha256: content of files whose hash was unknown; they are renamed only then.
        end: stop serving.
        cancel: end now; what arrived stays.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    look: tuple[DialAttempt, ...] | None = None
    round: int | None = None
    sources: Annotated[tuple[Source, ...] | None, Field(alias="from")] = None
    readers: Annotated[tuple[str, ...] | None, Field(alias="to")] = None
    certs: tuple[Certificate, ...] | None = None
    sha256: dict[str, Sha256] | None = None
    end: Literal[True] | None = None
    cancel: Literal[True] | None = None

    def line(self) -> bytes:
        """The order as a worker reads it."""
        return self.model_dump_json(exclude_none=True, by_alias=True).encode() + b"\n"


class Lacks(Fact):
    """What a node lacks of the list, without what an earlier run received."""

    files: Number
    bytes: Number


class Room(Fact):
    """Free and needed bytes on the disk of ``path``."""

    free: Number
    needed: Number
    path: Path


class FailedSource(Fact):
    """A node that no longer is pulled from, or one ``address`` of it that failed while others work.

    ``offset`` are the bytes that were there then.
    """

    node: str
    address: Address | None = None
    why: str
    offset: Number = 0


class Wrong(Fact):
    """A file that arrived with another SHA-256 than the list has, and is received again."""

    file: Number
    source: Annotated[str, Field(alias="from")]
    sha256: Sha256


class WorkDone(Fact):
    """Bytes that the node received, the time from the first of them to the last rename, and the memory used.

    Of an image also its ID on this node: another engine may call it otherwise.
    """

    bytes: Number = 0
    seconds: Measure = 0.0
    peak_bytes: Number = 0
    image_id: Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")] | None = None


class WorkerLine(Fact):
    """One line of a worker.

    Attributes:
        ports: of its listeners, by address; ``token`` and ``cert`` come with it.
        reached: addresses that proved their token in the look of that ``round``, by node.
        bytes: of ``total``, that are there and whole or growing; ``source`` (``from`` in the document) is whom it pulls
            from now, ``served`` the bytes that went to other nodes.
        left: the last sources, or addresses of them, that it left since the order ``from``.
        wrong: the last files that arrived corrupt.
        kept: the last files of the user's that others were put in the place of, as they are called now.
        sha256: content of files, where this source was the first to read them.
        failed: why it ended, of a ``kind`` as ``node.wire`` has them.
        refused: the lease is over.
    """

    ports: dict[Address, Port] | None = None
    token: Token | None = None
    cert: Certificate | None = None
    lacks: Lacks | None = None
    room: Room | None = None
    reached: dict[str, Few[Address]] | None = None
    round: Number = 0
    bytes: Number | None = None
    total: Number = 0
    source: Annotated[str | None, Field(alias="from")] = None
    served: dict[str, Number] = Field(default_factory=dict)
    left: tuple[FailedSource, ...] = ()
    wrong: tuple[Wrong, ...] = ()
    kept: tuple[Path, ...] = ()
    sha256: Numbered | None = None
    done: WorkDone | None = None
    failed: str | None = None
    kind: str = "other"
    refused: str | None = None

    @property
    def complete(self) -> bool:
        """Whether it has everything."""
        return self.done is not None

    @property
    def lacked(self) -> bool:
        """Whether it lacked something when it began, or has not said yet."""
        return self.lacks is None or self.lacks.files > 0

    def has(self, total: int) -> int:
        """Bytes of ``total`` that it has."""
        if self.complete or not self.lacked:
            return total
        if self.bytes is not None:
            return self.bytes
        return total - self.lacks.bytes if self.lacks else 0


def key(what: str, place: str) -> str:
    """Name of the job that stages ``what`` to ``place``, a root or a reference: the same on every run."""
    return hashlib.sha256(f"{what}\0{place}".encode()).hexdigest()[:16]


def files_path(state_dir: str, cluster: str, key: str) -> str:
    """Where the list of files of a job lies on a node."""
    return f"{state_dir}/clusters/{cluster}/staging/{key}/{FILES_NAME}"


def files_lines(files: Iterable[Mapping[str, Any]]) -> bytes:
    """The list of files as a worker reads it: one document in each line, the number of a file is its line.

    ``path``, ``size``, ``mtime`` (ns), ``sha256`` or null, and ``links``, as ``Manifest.files`` has them.
    """
    names = ("path", "size", "mtime", "sha256", "links")
    return b"".join(json.dumps({name: file[name] for name in names}).encode() + b"\n" for file in files)
