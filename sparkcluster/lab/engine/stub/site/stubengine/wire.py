"""JSON lines over sockets, and the addresses of this node."""

import contextlib
import fcntl
import json
import os
import socket
import struct
import threading

SIOCGIFADDR = 0x8915  # linux/sockios.h


class Channel:
    """A connection; any thread can send, always complete lines."""

    def __init__(self, sock):
        self.sock = sock
        self._lock = threading.Lock()
        self._reader = sock.makefile("r", encoding="utf-8", newline="\n")

    def send(self, **message):
        """Sends a message; returns False if the peer has closed the connection."""
        data = (json.dumps(message) + "\n").encode()
        try:
            with self._lock:
                self.sock.sendall(data)
        except OSError:
            return False
        return True

    def messages(self):
        """Yields messages until the peer closes the connection, or is silent for longer than the socket's time-out."""
        with contextlib.suppress(OSError, ValueError):
            for line in self._reader:
                yield json.loads(line)

    def receive(self):
        """The next message, or None if ``messages`` would end."""
        return next(self.messages(), None)

    def close(self):
        """Closes the connection, even while another thread reads from it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


def listen(address, port, handle):
    """Runs ``handle(channel, peer)`` in a thread per connection; returns the (address, port) of the socket."""
    listener = socket.create_server((address, port), backlog=64)

    def accept():
        while True:
            sock, peer = listener.accept()
            threading.Thread(target=handle, args=(Channel(sock), peer[0]), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()


def bound_address():
    """Address of the interface that GLOO_SOCKET_IFNAME names; None if the variable is unset.

    Raises LookupError with Gloo's message if the interface does not exist.
    """
    name = os.environ.get("GLOO_SOCKET_IFNAME")
    if not name:
        return None
    declared = os.environ.get("STUB_IFACES")  # name=address,...: several Sparks on one machine's loopback
    if declared:
        return dict(entry.split("=") for entry in declared.split(","))[name]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            found = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            raise LookupError(
                "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:83] "
                "ifa != nullptr. Unable to find interface for: %s" % name
            )
    return socket.inet_ntoa(found[20:24])


def host_ip(names=("VLLM_HOST_IP",), fallback="127.0.0.1"):
    """Address that an engine chooses for itself: from its variables, otherwise from the default route."""
    for name in names:
        if os.environ.get(name):
            return os.environ[name]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: a route is looked up, nothing is sent
            return probe.getsockname()[0]
        except OSError:
            return fallback


