"""What a copy to many nodes begins with: the files, the list of them on each node, and each worker's request."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkcluster.hosts.base import Host
from sparkcluster.staging.chain import Rates
from sparkcluster.staging.copy import Step
from sparkcluster.staging.keys import new_key
from sparkcluster.staging.order import Begin, Listen, Request, key

Bring = Callable[[Step, Host, str, bytes], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """How files are copied.

    Attributes:
        encrypt: on cables too.
        limit_bytes_s: the most that each node sends.
        rates: of earlier copies of weights in this cluster, for what people are told.
        image_rates: likewise of images, of which they are mostly Docker's.
        yes: whether nobody is asked before an image goes to other nodes.
    """

    encrypt: bool = False
    limit_bytes_s: int | None = None
    rates: Rates = dataclasses.field(default_factory=dict)
    image_rates: Rates = dataclasses.field(default_factory=dict)
    yes: bool = False


@dataclasses.dataclass(frozen=True)
class Files:
    """What is copied.

    Attributes:
        what: as people know it, such as ``weights``.
        requests: for ``node.relay`` by node, of those that have all of it, some or nothing.
        files: as ``Manifest.files`` has them.
    """

    what: str
    requests: Mapping[str, Request]
    files: Sequence[dict[str, Any]]


def begin_request(
    request: Request, node: str, plain: Mapping[str, bool], sha256: str, settings: Settings
) -> dict[str, Any]:
    """The request that begins the worker on ``node`` by its ``request`` of the artifact, without the lease.

    ``plain`` are the addresses to listen on, and whether without TLS; ``sha256`` is that of the list of files.
    """
    own = new_key()
    begin = Begin(
        what=request["what"],
        node=node,
        key=key(request["what"], request["root"]),
        listen=tuple(Listen(address=address, tls=not each) for address, each in plain.items()),
        token=secrets.token_hex(16),
        cert=own.certificate,
        private_key=own.private,
        limit_bytes_s=settings.limit_bytes_s,
        files_sha256=sha256,
    )
    return {**request, **begin.model_dump(exclude_none=True)}
