"""Certificates for copies that leave the interconnect: one key for each worker and job, which lives as long as that."""

from __future__ import annotations

import datetime as dt
import secrets

# Sparks that were off for long have any clock; what counts is who has the key, which is gone with the job.
_BEGIN = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_END = dt.datetime(2049, 12, 31, tzinfo=dt.UTC)


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
