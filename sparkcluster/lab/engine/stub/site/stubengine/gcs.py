"""A tiny GCS: who is in the cluster, who holds which GPU, and messages between drivers and raylets."""

import hmac
import os
import socket
import threading

from stubengine import RAY_VERSION, faults
from stubengine.wire import Channel, setting

SILENCE_S = 30.0  # Ray declares a node dead after five missed checks, 3 s apart, 10 s each at the worst


class TokenError(Exception):
    """Token authentication is asked for and there is no token."""


def token():
    """The cluster's token, or None where authentication is off; TokenError when it is missing."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return None
    found = os.environ.get("RAY_AUTH_TOKEN")
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or os.path.join(os.path.expanduser("~"), ".ray", "auth_token")
    if not found:
        try:
            with open(path, encoding="utf-8") as f:
                found = f.read()
        except OSError:
            found = ""
    if not found.strip():
        raise TokenError(
            "Token authentication is enabled but no authentication token was found. "
            "Please provide a token via RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        )
    return found.strip()


class Node:
    """One registered node."""

    def __init__(self, hello, channel):
        self.node_id = hello["node_id"]
        self.address = hello["address"]
        self.hostname = hello["hostname"]
        self.resources = hello["resources"]
        self.channel = channel
        self.alive = True

    def row(self):
        """The node as `ray.nodes()` shows it."""
        return {
            "NodeID": self.node_id,
            "Alive": self.alive,
            "NodeManagerAddress": self.address,
            "NodeManagerHostname": self.hostname,
            "NodeName": self.address,
            "Resources": dict(self.resources) if self.alive else {},
            "alive": self.alive,
        }


class Gcs:
    """Serves one cluster on one address; every connection has its thread."""

    def __init__(self, address, port, secret):
        self._secret = secret
        self._lock = threading.RLock()
        self._nodes = {}
        self._held = {}  # node_id -> channel of the driver that holds its GPU
        self._ranks = {}  # rank key -> (driver channel, Node)
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((address, port))
        self._listener.listen(64)
        self.port = self._listener.getsockname()[1]

    def serve(self):
        """Accepts for ever."""
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError:
                return
            connection.settimeout(setting("STUB_RAY_SILENCE_S", SILENCE_S))
            threading.Thread(target=self._greet, args=(Channel(connection), peer[0]), daemon=True).start()

    def _greet(self, channel, peer):
        try:
            hello = channel.receive()
        except socket.timeout:
            hello = None
        problem = self._refusal(hello)
        if problem:
            channel.send(error=problem)
            channel.close()
            return
        if hello["role"] == "raylet":
            self._raylet(hello, channel)
        else:
            self._client(channel, peer)

    def _refusal(self, hello):
        if not hello or hello.get("role") not in ("raylet", "client"):
            return "Malformed request"
        if self._secret is not None and not hmac.compare_digest(
            (hello.get("token") or "").encode(), self._secret.encode()
        ):
            return "Unauthenticated: InvalidAuthToken: Authentication token is missing or incorrect"
        if hello.get("version") != RAY_VERSION:
            return (
                "Version mismatch: The cluster was started with:\n    Ray: %s\nThis process was started with:\n"
                "    Ray: %s" % (RAY_VERSION, hello.get("version"))
            )
        return None

    def _raylet(self, hello, channel):
        node = Node(hello, channel)
        with self._lock:
            self._nodes[node.node_id] = node
        channel.send(ok=True)
        for message in channel.messages():
            if message.get("op") == "beat":
                channel.send(op="beat")
            elif message.get("op") in ("log", "exit"):
                self._forward(message, node)
        with self._lock:
            node.alive = False
            self._held.pop(node.node_id, None)
            lost = [key for key, (_, where) in self._ranks.items() if where is node]
        channel.close()
        for key in lost:
            self._forward({"op": "exit", "key": key, "code": None, "node_died": True}, node)

    def _forward(self, message, node):
        with self._lock:
            driver = self._ranks.get(message.get("key"), (None, None))[0]
            if message["op"] == "exit":
                self._ranks.pop(message.get("key"), None)
        if driver is not None:
            message["ip"] = node.address
            driver.send(**message)

    def _client(self, channel, peer):
        channel.sock.settimeout(None)
        channel.send(ok=True)
        for message in channel.messages():
            op = message.get("op")
            with self._lock:
                if op == "nodes":
                    channel.send(op="nodes", nodes=[self._row(n) for n in self._nodes.values()])
                elif op == "free":
                    free = sum(
                        n.resources.get("GPU", 0.0) for i, n in self._nodes.items() if n.alive and i not in self._held
                    )
                    channel.send(op="free", gpus=free)
                elif op == "place":
                    channel.send(op="placed", nodes=self._place(channel, message["bundles"], peer))
                elif op == "start":
                    node = self._nodes.get(message["node_id"])
                    self._ranks[message["key"]] = (channel, node)
                    if (
                        node is None
                        or not node.alive
                        or not node.channel.send(
                            op="spawn", key=message["key"], title=message["title"], spec=message["spec"]
                        )
                    ):
                        channel.send(op="exit", key=message["key"], code=None, node_died=True)
        self._release(channel)
        channel.close()

    def _row(self, node):
        """The node as it is listed; the fault ray-dead has an address listed as dead that is not."""
        row = node.row()
        if faults.active().get("ray-dead") == node.address:
            row.update(Alive=False, alive=False, Resources={})
        return row

    def _place(self, driver, bundles, peer):
        """One GPU on each of ``bundles`` nodes, the driver's own first; None when there are not enough."""
        free = [
            n for i, n in self._nodes.items() if n.alive and i not in self._held and n.resources.get("GPU", 0.0) >= 1.0
        ]
        if len(free) < bundles:
            return None
        free.sort(key=lambda n: (n.address != peer, n.node_id))
        chosen = free[:bundles]
        for node in chosen:
            self._held[node.node_id] = driver
        return [n.row() for n in chosen]

    def _release(self, driver):
        with self._lock:
            for node_id in [i for i, d in self._held.items() if d is driver]:
                del self._held[node_id]
            mine = [(k, n) for k, (d, n) in self._ranks.items() if d is driver]
            for key, node in mine:
                self._ranks.pop(key, None)
                if node is not None:
                    node.channel.send(op="kill", key=key)
