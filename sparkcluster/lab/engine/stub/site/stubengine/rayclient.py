"""What drivers, `import ray` and the `ray` command share: finding the GCS and talking to it."""

import os
import socket

from stubengine import RAY_VERSION, gcs
from stubengine.wire import Channel


class Refused(Exception):
    """The GCS answered and said no; the message is its reason."""


def temp_dir():
    """Where this host's Ray keeps its notes; real Ray's default is /tmp/ray."""
    return os.environ.get("RAY_TMPDIR") or "/tmp/ray"


def current_cluster():
    """HOST:PORT of the cluster this host belongs to, or None."""
    given = os.environ.get("RAY_ADDRESS")
    if given and given not in ("auto", "local"):
        return given
    try:
        with open(os.path.join(temp_dir(), "ray_current_cluster"), encoding="utf-8") as f:
            return f.read().strip() or None
    except OSError:
        return None


def split(address):
    """(host, port) of HOST:PORT; ValueError when it is not that."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError("Malformed address: %s" % address)
    return host, int(port)


def connect(gcs_address, role, source=None, timeout_s=5.0, **hello):
    """A greeted Channel to the GCS. OSError: not reachable; Refused: it said no; gcs.TokenError: no token here."""
    secret = gcs.token()
    host, port = split(gcs_address)
    sock = socket.create_connection((host, port), timeout=timeout_s, source_address=(source, 0) if source else None)
    channel = Channel(sock)
    channel.send(role=role, token=secret, version=RAY_VERSION, **hello)
    try:
        answer = channel.receive()
    except socket.timeout:
        channel.close()
        raise OSError("no answer from GCS at %s" % gcs_address)
    if not answer or not answer.get("ok"):
        channel.close()
        raise Refused((answer or {}).get("error") or "connection closed by GCS at %s" % gcs_address)
    sock.settimeout(None)
    return channel


def ask(channel, op, **message):
    """One question on a channel of its own; ConnectionError when the GCS is gone."""
    channel.send(op=op, **message)
    answer = channel.receive()
    if answer is None:
        raise ConnectionError("lost the connection to GCS")
    return answer
