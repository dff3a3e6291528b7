"""Builds the start of a copy to many nodes: the files, the settings, and each worker's request and certificate.

The certificate protects data that leaves the interconnect; its key exists only as long as the worker.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.chain import Rates

# A Spark that was off for long may have any clock. Security depends on the key, which ends with the job.
_BEGIN = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_END = dt.datetime(2049, 12, 31, tzinfo=dt.UTC)


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a copy.

    Attributes:
        encrypt: encrypt on cables too.
        limit_bytes_s: maximum rate at which each node sends.
        rates: of earlier copies of weights in this cluster, for estimates.
        image_rates: of earlier copies of images, which are mostly Docker's time.
        yes: copy an image to other nodes without asking.
        verify: read every copy of the weights, even if nothing is missing, and replace corrupt ones.
    """

    encrypt: bool = False
    limit_bytes_s: int | None = None
    rates: Rates = dataclasses.field(default_factory=dict)
    image_rates: Rates = dataclasses.field(default_factory=dict)
    yes: bool = False
    verify: bool = False


@dataclasses.dataclass(frozen=True)
class Files:
    """Files to copy.

    Attributes:
        what: name for messages, such as ``weights``.
        requests: to the workers, one per node, including nodes that already have all files.
        files: as in ``Manifest.files``.
    """

    what: str
    requests: Mapping[str, Request]
    files: Sequence[dict[str, Any]]


def begin_request(request: Request, listen: Mapping[str, bool], files: int, settings: Settings) -> Request:
    """The request that starts a worker, from the node's ``request`` for the artifact; without the lease.

    ``listen`` are the addresses to listen on, and whether with TLS; ``files`` is the length of the list. Clients of
    this worker need ``token``. The private key of ``cert`` is kept in memory only.
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
    """A certificate for every node of the job, and its private key for one node; both in PEM.

    The key is new (P-256) and the certificate is self-signed: clients trust exactly this certificate.
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
