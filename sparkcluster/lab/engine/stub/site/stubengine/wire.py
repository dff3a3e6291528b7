"""JSON lines over a socket, and what a node says of its own interfaces."""

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
        except (OSError, ValueError):
            return False
        return True

    def receive(self):
        """The next message, or None when the other end is gone; socket.timeout passes through."""
        try:
            line = self._reader.readline()
        except socket.timeout:
            # a file over a socket that timed out once refuses to read on
            self._reader = self.sock.makefile("r", encoding="utf-8", newline="\n")
            raise
        except (OSError, ValueError):
            return None
        if not line.endswith("\n"):
            return None
        try:
            return json.loads(line)
        except ValueError:
            return None

    def messages(self):
        """All messages until the other end is gone or silent for the socket's time-out."""
        while True:
            try:
                message = self.receive()
            except socket.timeout:
                return
            if message is None:
                return
            yield message

    def close(self):
        """Closes both directions, also under a reader in another thread."""
        for step in (lambda: self.sock.shutdown(socket.SHUT_RDWR), self.sock.close):
            try:
                step()
            except OSError:
                continue


def _declared():
    """STUB_IFACES=name=address/prefix,...: interfaces by decree, so that one machine can play several."""
    table = {}
    for entry in filter(None, os.environ.get("STUB_IFACES", "").split(",")):
        name, _, address = entry.partition("=")
        table[name] = ipaddress.ip_interface(address)
    return table


def interfaces():
    """IPv4 interfaces of this host: {name: ip_interface}."""
    found = _declared()
    if found:
        return found
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


def gloo_interface(name):
    """The interface Gloo takes for a bare name, or None where it takes what the host name resolves to.

    Raises LookupError in Gloo's words when there is none by that name.
    """
    if not name:
        return None
    found = interfaces().get(name)
    if found is None:
        raise LookupError(
            "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:83] "
            "ifa != nullptr. Unable to find interface for: %s" % name
        )
    return found


def nccl_interface(spec):
    """The (name, interface) NCCL takes for NCCL_SOCKET_IFNAME: prefixes, ``=`` exact, ``^`` exclude; None if unset.

    Raises LookupError in NCCL's words when nothing matches.
    """
    if not spec:
        return None
    exclude, exact = spec.startswith("^"), spec.startswith(("=", "^="))
    names = [n for n in spec.lstrip("^=").split(",") if n]
    for name, interface in interfaces().items():
        hit = name in names if exact else any(name.startswith(n) for n in names)
        if hit != exclude and not (exclude and interface.is_loopback):
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
