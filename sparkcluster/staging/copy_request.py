"""What a copy to many nodes begins with: the files, its settings, each worker's request and its certificate.

The certificate is for what leaves the interconnect; its key lives as long as the worker.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.chain import Rates

# Sparks that were off for long have any clock; what counts is who has the key, which is gone with the job.
_BEGIN = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_END = dt.datetime(2049, 12, 31, tzinfo=dt.UTC)


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """How files are copied.

    Attributes:
        encrypt: on cables too.
        limit_bytes_s: the most that each node sends.
        rates: of earlier copies of weights in this cluster, for what people are told.
        image_rates: likewise of images, of which they are mostly Docker's.
        yes: whether nobody is asked before an image goes to other nodes.
        verify: whether every copy of weights is read, also where nothing is missing, and replaced where it is wrong.
    """

    encrypt: bool = False
    limit_bytes_s: int | None = None
    rates: Rates = dataclasses.field(default_factory=dict)
    image_rates: Rates = dataclasses.field(default_factory=dict)
    yes: bool = False
    verify: bool = False


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


def new_key() -> tuple[str, str]:
    """A certificate, which every node of the job gets, and the key to it, which one node gets; both in PEM.

    The key is new (P-256). The certificate is signed by itself: whoever is to trust it has that very certificate.
    """
    from cryptography import x509  # noqa: PLC0415 - 50 ms, and most commands copy nothing
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    # names differ, since certificates are found by name
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, secrets.token_hex(16))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .sign(key, hashes.SHA256())
    )
    encoding, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private_key = key.private_bytes(encoding, private, serialization.NoEncryption())
    return certificate.public_bytes(encoding).decode(), private_key.decode()
