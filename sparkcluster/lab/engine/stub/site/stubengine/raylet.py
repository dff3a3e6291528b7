"""The raylet of a node: keeps a connection to the GCS, and starts ranks for drivers."""

import os
import socket
import subprocess
import threading
import time

from stubengine import proc, rayclient, wire

GCS_WAIT_S = 60.0  # how long a worker tries to reach its head


class Raylet:
    """A node at ``address``; ranks inherit its environment."""

    def __init__(self, address, gpus):
        self._gcs = None
        self._node = {
            "NodeID": os.urandom(16).hex(),
            "NodeManagerAddress": address,
            "NodeManagerPort": wire.listen(address, 0, self._run_rank)[1],
            "NodeManagerHostname": socket.gethostname(),
            "NodeName": address,
            "Resources": {"GPU": gpus, "CPU": 1.0, "node:%s" % address: 1.0},
        }

    def join(self, gcs_address):
        """Registers as soon as the head is reachable. Raises OSError after the limit, or Refused."""
        deadline = time.monotonic() + GCS_WAIT_S
        while self._gcs is None:
            try:
                self._gcs = rayclient.connect(gcs_address, source=self._node["NodeManagerAddress"], node=self._node)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        threading.Thread(target=rayclient.beat, args=(self._gcs,), daemon=True).start()

    def wait(self):
        """Returns when the GCS stops or is silent; ranks exit with this process."""
        for _ in self._gcs.messages():
            continue

    def _run_rank(self, driver, _peer):
        """Runs a rank while its driver is connected, and forwards its log and its exit."""
        order = rayclient.admit(driver)
        if order is None:
            return
        driver.send(ok=True)
        process, channel = proc.spawn("rank", order["title"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        channel.send(**order["spec"])

        def end_with_driver():
            for _ in driver.messages():
                continue
            process.kill()

        threading.Thread(target=end_with_driver, daemon=True).start()
        threading.Thread(target=rayclient.beat, args=(driver,), daemon=True).start()
        for line in process.stdout:
            driver.send(pid=process.pid, line=line.decode("utf-8", "replace").rstrip("\n"))
        driver.send(pid=process.pid, code=process.wait())
        driver.close()
