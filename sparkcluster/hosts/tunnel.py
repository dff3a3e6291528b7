"""Forwards a local port to a port of a node over SSH, for clients that run on this machine."""

from __future__ import annotations

import contextlib
import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

from sparkcluster.errors import HostError
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.handshake import why
from sparkcluster.hosts.paramiko_transport import paramiko
from sparkcluster.hosts.ssh import SshHost

_BROKEN = (OSError, EOFError, paramiko.SSHException)
_CHUNK, _AT_ONCE = 1 << 15, 512


@contextlib.contextmanager
def forwarded(host: Host, url: str) -> Iterator[str]:
    """A local URL that is forwarded to ``url`` of ``host`` within the block, over a separate connection.

    Each TCP connection becomes an SSH channel, as with ``ssh -L``, until either end closes it. For a host without SSH,
    ``url`` itself.

    Raises:
        HostError: the node cannot be reached, its sshd forbids forwarding, or nothing listens on the port.
    """
    if not isinstance(host, SshHost):
        yield url
        return
    parts = urlsplit(url)
    with host.separate_connection() as own:
        # If no command has run on a connection, sshd leaves Nagle's algorithm on: tokens came up to 40 ms late.
        own.run(["true"])
        transport = own.transport()

        def connect() -> paramiko.Channel:
            target = (parts.hostname or "", parts.port or 80)
            return transport.open_channel("direct-tcpip", target, ("127.0.0.1", 0), timeout=10)

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(*_BROKEN), contextlib.closing(connect()) as channel:
                    # tokens are small, and their timing is measured
                    self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    other = {self.request: channel, channel: self.request}
                    while True:
                        for one in select.select(list(other), [], [])[0]:
                            if not (chunk := one.recv(_CHUNK)):
                                return
                            other[one].sendall(chunk)

        try:
            connect().close()
        except _BROKEN as error:
            text = f"sshd on {host.name} cannot connect to port {parts.port}: {why(error)[0]}"
            hint = "sparkcluster status INVENTORY; if it serves: set AllowTcpForwarding yes in its sshd_config"
            raise HostError(text, node=host.name, step="tunnel", hint=hint) from error
        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as listener:
            listener.socket.listen(_AT_ONCE)  # with the default of 5, some connections came a second late
            threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True).start()
            try:
                yield parts._replace(netloc=f"127.0.0.1:{listener.server_address[1]}").geturl()
            finally:
                listener.shutdown()
                own.close()  # closes all channels, and so all connections
