"""A small GCS: the nodes of the cluster, and the drivers that reserved their GPUs."""

import threading

from stubengine import faults, rayclient, wire


class Gcs:
    """Serves one cluster on one address; a node is alive while its raylet sends beats."""

    def __init__(self, address, port):
        self._lock = threading.Lock()
        self._nodes = {}  # by ID, as `ray.nodes()` shows a live node
        self._alive = set()
        self._holders = {}  # ID of a node -> channel of the driver that reserved its GPU
        self.port = wire.listen(address, port, self._serve)[1]

    def _serve(self, channel, peer):
        hello = rayclient.admit(channel)
        if hello is None:
            return
        if "node" in hello:
            self._register(hello["node"], channel)
        else:
            self._answer(channel, peer)

    def _register(self, node, channel):
        node_id = node["NodeID"]
        with self._lock:
            self._nodes[node_id] = node
            self._alive.add(node_id)
        channel.send(ok=True)
        for _ in channel.messages():
            channel.send(op="beat")
        channel.close()
        with self._lock:
            self._alive.remove(node_id)
            self._holders.pop(node_id, None)

    def _answer(self, channel, peer):
        channel.sock.settimeout(None)  # a client may be silent
        channel.send(ok=True)
        for message in channel.messages():
            with self._lock:
                if message["op"] == "nodes":
                    channel.send(nodes=[self._row(node) for node in self._nodes.values()])
                elif message["op"] == "place":
                    channel.send(place=self._place(channel, message["bundles"], peer))
        with self._lock:
            self._holders = {node: driver for node, driver in self._holders.items() if driver is not channel}

    def _row(self, node):
        """The node's entry in the list; the fault ray-dead lists a live address as dead."""
        alive = node["NodeID"] in self._alive and faults.active().get("ray-dead") != node["NodeManagerAddress"]
        return dict(node, Alive=alive, alive=alive, Resources=node["Resources"] if alive else {})

    def _place(self, driver, bundles, peer):
        """One GPU on each of ``bundles`` nodes, the driver's node first; None if there are too few."""
        free = [self._nodes[each] for each in self._alive if each not in self._holders]
        free = [node for node in free if node["Resources"]["GPU"] >= 1.0]
        if len(free) < bundles:
            return None
        free.sort(key=lambda node: (node["NodeManagerAddress"] != peer, node["NodeID"]))
        for node in free[:bundles]:
            self._holders[node["NodeID"]] = driver
        return free[:bundles]
