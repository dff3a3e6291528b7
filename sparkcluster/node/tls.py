"""TLS between two workers, each with a certificate of its own for one job.

Nobody signs them: the controller makes a certificate and its key for each worker and tells the others which it is, over
SSH. Both ends of a connection compare what the other one shows with those, byte by byte. It wraps a connection whose
ends have proved the token: who passed that greeting on to another node has no certificate.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sparkcluster.node.wire import Failed

if TYPE_CHECKING:
    import ssl


_CERTS_S = 1.0  # for them to arrive: others may have got theirs before


class Identity:
    """The certificate of this worker and its ``private_key``, in PEM; the key is in memory alone, as in no file.

    Attributes:
        certs: certificates of the workers that may dial this one, in PEM.
    """

    def __init__(self, cert: str, private_key: str) -> None:
        self._pem = (cert + private_key).encode()
        self.certs: Iterable[str] = ()

    def accept(self, sock: socket.socket) -> ssl.SSLSocket:
        """The encrypted connection to a worker that dialled, which has one of ``certs``."""
        until = time.monotonic() + _CERTS_S
        while not self.certs and time.monotonic() < until:
            time.sleep(0.05)
        return self._wrap(sock, tuple(self.certs), server=True)

    def dial(self, sock: socket.socket, cert: str) -> ssl.SSLSocket:
        """The encrypted connection to the worker that has ``cert``."""
        return self._wrap(sock, (cert,), server=False)

    def _wrap(self, sock: socket.socket, certs: Iterable[str], *, server: bool) -> ssl.SSLSocket:
        import ssl  # 2 MB of memory, where nothing is encrypted

        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata="".join(certs))
            handle = os.memfd_create("certificate")
            try:
                os.write(handle, self._pem)
                context.load_cert_chain("/proc/self/fd/%d" % handle)
            finally:
                os.close(handle)
            wrapped = context.wrap_socket(sock, server_side=server)
            if wrapped.getpeercert(binary_form=True) in [ssl.PEM_cert_to_DER_cert(cert) for cert in certs]:
                return wrapped
        except (OSError, ValueError) as error:  # ssl.SSLError is one of them
            sock.close()
            raise Failed("link", "no encrypted connection: %s" % error) from None
        wrapped.close()
        raise Failed("link", "no encrypted connection: another certificate than that of the node")
