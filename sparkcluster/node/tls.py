"""TLS between two workers: the listener's certificate is new for each job, and sent to the client over SSH.

It is self-signed, and the only one that the client trusts. The client authenticates by the job's token.
"""

from __future__ import annotations

import os
import ssl


def listener(cert: str, private_key: str) -> ssl.SSLContext:
    """The context of a listening worker, from its certificate and key in PEM; the key stays in memory."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    handle = os.memfd_create("certificate")
    try:
        os.write(handle, (cert + private_key).encode())
        context.load_cert_chain("/proc/self/fd/%d" % handle)
    finally:
        os.close(handle)
    return context


def dialer(cert: str) -> ssl.SSLContext:
    """The context of a client that trusts only ``cert``, in PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=cert)
    return context
