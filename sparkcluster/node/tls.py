"""TLS between two workers: the listener has a certificate of its own for one job, which the dialer got over SSH.

Nobody signs it: it is the only one that the dialer trusts. The dialer proves itself by the job's token.
"""

from __future__ import annotations

import os
import ssl


def listener(cert: str, private_key: str) -> ssl.SSLContext:
    """The context of a worker that listens, by its certificate and key in PEM; the key is in memory alone."""
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
    """The context of a worker that dials the one that has ``cert``, in PEM, and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=cert)
    return context
