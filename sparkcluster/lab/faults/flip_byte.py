"""A proxy that changes bytes sent by a Spark: python3 -c SOURCE NAME N EVERY. Python 3.8, standard library only.

It prints its port and continues in the background. A packet filter's REDIRECT sends connections to it; it connects to
their original destination on the Spark itself, and forwards both directions.
"""

import contextlib
import os
import socket
import sys
import threading

ORIGINAL_DESTINATION = 80  # SO_ORIGINAL_DST of linux/netfilter_ipv4.h
BLOCK = 256 * 1024


class Flips:
    """Selects the bytes to change.

    ``at`` counts from 0: that byte in the first connection with as many bytes; with ``every``, each ``at``-th byte of
    every connection.
    """

    def __init__(self, at: int, *, every: bool) -> None:
        self._at = at
        self._every = every
        self._lock = threading.Lock()
        self._over = False

    def change(self, block: bytearray, sent: int) -> None:
        """Change bytes of ``block``, which starts at offset ``sent`` of its connection."""
        with self._lock:
            if self._every:
                first = -(sent + 1) % self._at
                block[first :: self._at] = bytes(byte ^ 0x10 for byte in block[first :: self._at])
            elif not self._over and sent <= self._at < sent + len(block):
                block[self._at - sent] ^= 0x10
                self._over = True


def pass_on(source: socket.socket, target: socket.socket, flips: Flips | None) -> None:
    """Forward from ``source`` to ``target`` until the end."""
    sent = 0
    try:
        while True:
            block = bytearray(source.recv(BLOCK))
            if not block:
                break
            if flips is not None:
                flips.change(block, sent)
            target.sendall(block)
            sent += len(block)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # An error on one side closes the other.
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def connect(client: socket.socket, flips: Flips) -> None:
    """Forward a connection to its original destination."""
    asked = client.getsockopt(socket.SOL_IP, ORIGINAL_DESTINATION, 16)
    address = (socket.inet_ntoa(asked[4:8]), int.from_bytes(asked[2:4], "big"))
    with client:
        try:
            server = socket.create_connection(address)
        except OSError:
            return
        with server:
            back = threading.Thread(target=pass_on, args=(server, client, flips), daemon=True)
            back.start()
            pass_on(client, server, None)
            back.join()


def main() -> None:
    """Listen on any port, print it, and serve in the background."""
    listener = socket.socket()
    listener.bind(("", 0))
    listener.listen(64)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    if os.fork():
        os._exit(0)
    os.setsid()
    os.closerange(0, 3)
    flips = Flips(int(sys.argv[2]), every=sys.argv[3] == "every")
    while True:
        client = listener.accept()[0]
        threading.Thread(target=connect, args=(client, flips), daemon=True).start()


if __name__ == "__main__":
    main()
