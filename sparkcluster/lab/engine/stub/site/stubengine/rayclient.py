"""Shared by Ray's processes: the address of the GCS, the token, and connections between them."""

import hmac
import os
import socket
import time

from stubengine import RAY_VERSION
from stubengine.wire import Channel

BEAT_S = 1.0
SILENCE_S = 30.0  # Ray declares a node dead after five missed checks, 3 s apart, each at most 10 s


class Refused(RuntimeError):
    """The peer refused the connection, or there is no token to send; the message is the reason."""


def token():
    """The cluster's token, or None if authentication is off; raises Refused if the token is missing."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return None
    found = os.environ.get("RAY_AUTH_TOKEN", "")
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or os.path.join(os.path.expanduser("~"), ".ray", "auth_token")
    if not found and os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            found = f.read()
    if not found.strip():
        raise Refused(
            "Token authentication is enabled but no authentication token was found. "
            "Please provide a token via RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        )
    return found.strip()


def split(address):
    """(host, port) of HOST:PORT; ValueError if the text has another form."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError("Malformed address: %s" % address)
    return host, int(port)


def limit_silence(sock):
    """Closes a connection whose peer sends nothing (a stopped process) or acknowledges nothing (a pulled cable)."""
    sock.settimeout(SILENCE_S)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE_S * 1000))


def beat(channel):
    """Sends a beat every second, which the peer answers, until the peer closes the connection."""
    while channel.send(op="beat"):
        time.sleep(BEAT_S)


def connect(address, source=None, **hello):
    """An accepted Channel to HOST:PORT. Raises OSError if it is not reachable, or Refused."""
    secret = token()
    sock = socket.create_connection(split(address), timeout=5, source_address=(source, 0) if source else None)
    channel = Channel(sock)
    channel.send(token=secret, version=RAY_VERSION, **hello)
    answer = channel.receive()
    if answer is None:
        raise OSError("no answer from GCS at %s" % address)
    if "error" in answer:
        raise Refused(answer["error"])
    limit_silence(sock)
    if not hello:
        sock.settimeout(None)  # there are no beats between the GCS and its clients
    return channel


def admit(channel):
    """The caller's first message, which must be answered; None if the caller was refused."""
    limit_silence(channel.sock)
    hello = channel.receive() or {}
    secret = token()
    if secret is not None and not hmac.compare_digest((hello.get("token") or "").encode(), secret.encode()):
        refusal = "Unauthenticated: InvalidAuthToken: Authentication token is missing or incorrect"
    elif hello.get("version") != RAY_VERSION:
        refusal = (
            "Version mismatch: The cluster was started with:\n    Ray: %s\nThis process was started with:\n"
            "    Ray: %s" % (RAY_VERSION, hello.get("version"))
        )
    else:
        return hello
    channel.send(error=refusal)
    channel.close()
    return None


def ask(channel, op, **message):
    """The answer to a request on a channel; ConnectionError if the GCS has stopped."""
    channel.send(op=op, **message)
    answer = channel.receive()
    if answer is None:
        raise ConnectionError("lost the connection to GCS")
    return answer[op]
