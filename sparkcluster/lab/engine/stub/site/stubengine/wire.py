"""JSON lines over sockets, the network interfaces of this node, and the stub's settings."""

import contextlib
import fcntl
import ipaddress
import json
import os
import socket
import struct
import threading

SIOCGIFADDR, SIOCGIFNETMASK = 0x8915, 0x891B  # linux/sockios.h


class Channel:
    """One connection; sends are whole lines, from any thread."""

    def __init__(self, sock):
        self.sock = sock
        self._lock = threading.Lock()
        self._reader = sock.makefile("r", encoding="utf-8", newline="\n")

    def send(self, **message):
        """Sends one message; False when the other end is gone."""
        data = (json.dumps(message) + "\n").encode()
        try:
            with self._lock:
                self.sock.sendall(data)
        except OSError:
            return False
        return True

    def messages(self):
        """All messages until the other end is gone, or silent for longer than the socket's time-out."""
        with contextlib.suppress(OSError, ValueError):
            for line in self._reader:
                yield json.loads(line)

    def receive(self):
        """The next message, or None where ``messages`` would end."""
        return next(self.messages(), None)

    def close(self):
        """Ends the connection, also under a reader in another thread."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


def listen(address, port, handle):
    """Has ``handle(channel, peer)`` serve each connection in a thread; returns the (address, port) listened on."""
    listener = socket.create_server((address, port), backlog=64)

    def accept():
        while True:
            sock, peer = listener.accept()
            threading.Thread(target=handle, args=(Channel(sock), peer[0]), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()


def interfaces():
    """IPv4 interfaces of this host, {name: ip_interface}, or those of STUB_IFACES=name=address/prefix,..."""
    declared = os.environ.get("STUB_IFACES")
    if declared:
        pairs = (entry.split("=") for entry in declared.split(","))
        return {name: ipaddress.ip_interface(address) for name, address in pairs}
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                address = socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24])
                mask = socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFNETMASK, request)[20:24])
            except OSError:
                continue
            found[name] = ipaddress.ip_interface("%s/%s" % (address, mask))
    return found


def bound_interface(library):
    """The (name, interface) that ``gloo`` or ``nccl`` takes by its _SOCKET_IFNAME; None if the variable is unset.

    Gloo takes a bare name. NCCL takes prefixes, ``=`` exact names, ``^`` all but these. Raises LookupError with
    the library's message when nothing matches.
    """
    value = os.environ.get(library.upper() + "_SOCKET_IFNAME")
    if not value:
        return None
    found = interfaces()
    if library == "gloo":
        if value in found:
            return value, found[value]
        raise LookupError(
            "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:83] "
            "ifa != nullptr. Unable to find interface for: %s" % value
        )
    exclude, exact = value.startswith("^"), value.startswith(("=", "^="))
    names = [n for n in value.lstrip("^=").split(",") if n]
    for name, interface in found.items():
        match = name in names if exact else any(name.startswith(n) for n in names)
        if match != exclude and not (exclude and interface.is_loopback):
            return name, interface
    raise LookupError("Bootstrap : no socket interface found")


def host_ip():
    """Address vLLM would give itself: VLLM_HOST_IP, else the one of the default route, else loopback."""
    configured = os.environ.get("VLLM_HOST_IP")
    if configured:
        return configured
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: a route is looked up, nothing is sent
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"


def setting(name, default):
    """A number of the stub's own settings from the environment."""
    try:
        return type(default)(os.environ.get(name, default))
    except ValueError:
        return default
