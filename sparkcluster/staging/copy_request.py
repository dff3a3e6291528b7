"""What a copy to many nodes begins with: the files, the list of them on each node, and each worker's request."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.chain import Rates
from sparkcluster.staging.keys import new_key


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
        requests: for the worker by node, of those that have all of it, some or nothing.
        files: as ``Manifest.files`` has them.
    """

    what: str
    requests: Mapping[str, Request]
    files: Sequence[dict[str, Any]]


def begin_request(request: Request, listen: Mapping[str, bool], files: int, settings: Settings) -> Request:
    """The request that begins a worker by its node's ``request`` of the artifact, without the lease.

    It is to ``listen`` on these addresses, under TLS or not; ``files`` is how many the list has. ``token`` is what
    dialers of this worker must know. The key that belongs to ``cert`` it keeps in memory alone.
    """
    certificate, private_key = new_key()
    return {
        **request,
        "listen": listen,
        "token": secrets.token_hex(16),
        "cert": certificate,
        "private_key": private_key,
        "limit_bytes_s": settings.limit_bytes_s,
        "files": files,
    }
