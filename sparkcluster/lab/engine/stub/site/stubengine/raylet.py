"""One node's part in the cluster: a kept connection to the GCS, and the rank processes it is told to start."""

import os
import signal
import socket
import subprocess
import threading
import time
import uuid

from stubengine import proc, rayclient
from stubengine.gcs import SILENCE_S
from stubengine.wire import setting

BEAT_S = 1.0


class Raylet:
    """Registered from ``address``; ranks inherit the environment in which it was started."""

    def __init__(self, gcs_address, address, gpus):
        self.node_id = uuid.uuid4().hex
        self._ranks = {}
        self._lock = threading.Lock()
        self._channel = rayclient.connect(
            gcs_address,
            "raylet",
            source=address,
            node_id=self.node_id,
            address=address,
            hostname=socket.gethostname(),
            resources={"GPU": float(gpus), "CPU": 1.0, "node:%s" % address: 1.0},
        )
        self._channel.sock.settimeout(setting("STUB_RAY_SILENCE_S", SILENCE_S))

    def run(self):
        """Serves until the GCS is gone or silent; every rank is dead when it returns."""
        threading.Thread(target=self._beat, daemon=True).start()
        for message in self._channel.messages():
            if message.get("op") == "spawn":
                self._spawn(message)
            elif message.get("op") == "kill":
                self._kill(message["key"])
        for key in list(self._ranks):
            self._kill(key)

    def _beat(self):
        while self._channel.send(op="beat"):
            time.sleep(BEAT_S)

    def _spawn(self, message):
        key = message["key"]
        process, channel = proc.spawn(
            "rank", message["title"], env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        with self._lock:
            self._ranks[key] = (process, channel)
        channel.send(**message["spec"])
        threading.Thread(target=self._watch, args=(key, process, channel), daemon=True).start()

    def _watch(self, key, process, channel):
        for line in process.stdout:
            self._channel.send(op="log", key=key, pid=process.pid, line=line.decode("utf-8", "replace").rstrip("\n"))
        code = process.wait()
        channel.close()
        with self._lock:
            self._ranks.pop(key, None)
        self._channel.send(op="exit", key=key, code=code, pid=process.pid)

    def _kill(self, key):
        with self._lock:
            process, _ = self._ranks.get(key, (None, None))
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGKILL)
