"""Executors: the engine core is the rank, starts ranks as processes or by Ray, or accepts ranks of other nodes."""

import contextlib
import json
import os
import threading
import time

from stubengine import faults, log, proc, rank, rayclient, wire

PLACEMENT_S = 1800.0  # vLLM's limit for a placement group
# vLLM 0.32, WORKER_SPECIFIC_ENV_VARS of its Ray executors
WORKER_SPECIFIC = frozenset(
    (
        "VLLM_HOST_IP",
        "VLLM_HOST_PORT",
        "VLLM_NIXL_SIDE_CHANNEL_HOST",
        "LOCAL_RANK",
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
    )
)


class ExecutorError(Exception):
    """The ranks cannot be started, or a rank is lost."""


def carried_env():
    """The driver's variables, except worker-specific ones and the ones listed in the non-carry-over file."""
    path = os.path.join(os.environ.get("VLLM_CONFIG_ROOT") or "", "ray_non_carry_over_env_vars.json")
    excluded = set(WORKER_SPECIFIC)
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as f:
        excluded.update(json.load(f))
    return {k: v for k, v in os.environ.items() if k not in excluded}


class Uni:
    """World size one: the engine core itself is the rank, so no rank can be lost."""

    dead = None

    def __init__(self, spec):
        self._spec = spec

    def start(self, failed):
        """Applies the faults of a rank to this process."""
        faults.obey()

    def load(self):
        """Digest of the weights."""
        rank.check_fabric()
        return rank.load_model(self._spec, 0)

    def step(self):
        """One decode step."""


class Multi:
    """Ranks as processes that connect to this one; subclasses implement ``start_ranks``."""

    sees_all = False  # whether it notices that a rank of another node has stopped

    def __init__(self, spec, address, port):
        self.spec = spec
        self.dead = None
        self._failed = None
        self._changed = threading.Condition()
        self._links = {}  # rank -> Channel
        self._loaded = {}
        self._steps = {}
        self._count = 0
        self.greeting = {"ok": True}  # sent to each rank when all have connected
        try:
            self.master = wire.listen(address, port, self._link)
        except OSError as error:
            raise ExecutorError(
                "RuntimeError: The server socket has failed to listen on any local network address. "
                "server %s:%d: %s" % (address, port, os.strerror(error.errno))
            )

    def start(self, failed):
        """Starts the ranks; ``failed(reason)`` is called when one is lost while serving."""
        self._failed = failed
        self.start_ranks()

    def lose(self, reason):
        """Records that a rank is lost."""
        with self._changed:
            if self.dead is not None:
                return
            self.dead = reason
            self._changed.notify_all()
        if len(self._loaded) == self.spec["world"]:
            self._failed(reason)

    def _link(self, channel, peer):
        hello = channel.receive()
        if not hello:
            return
        number = hello["rank"]
        with self._changed:
            self._links[number] = channel
            self._changed.notify_all()
            # a full mesh: no rank proceeds until all have connected
            while self.dead is None and len(self._links) < self.spec["world"]:
                self._changed.wait()
        channel.send(**self.greeting)
        for message in channel.messages():
            with self._changed:
                if "loaded" in message:
                    self._loaded[number] = message["loaded"]
                elif "step" in message:
                    self._steps[number] = message["step"]
                self._changed.notify_all()
            if "failed" in message:
                self.lose("Worker %d failed: %s" % (number, message["failed"]))
        if self.sees_all or number not in self._loaded:
            time.sleep(0.3)  # the process that started the rank reports the better reason
            self.lose(rank.CLOSED % peer + " (rank %d)" % number)

    def _wait(self, done, limit_s=None, complaint=None):
        with self._changed:
            if not self._changed.wait_for(lambda: self.dead is not None or done(), limit_s):
                raise ExecutorError(complaint())
            if self.dead is not None:
                raise ExecutorError(self.dead)

    def load(self):
        """Waits for all ranks, then for their weights; returns their digest, or a different one if the copies differ."""
        limit_s = rank.RENDEZVOUS_S + 2
        self._wait(
            lambda: len(self._links) == self.spec["world"],
            limit_s,
            lambda: (
                "torch.distributed.DistStoreError: Timed out after %.0f seconds waiting for clients. "
                "%d/%d clients joined." % (limit_s, len(self._links), self.spec["world"])
            ),
        )
        self._wait(lambda: len(self._loaded) == self.spec["world"])
        digests = set(self._loaded.values())
        return digests.pop() if len(digests) == 1 else "differ:" + "+".join(sorted(digests))

    def stop(self):
        """Makes all ranks exit."""
        self.dead = "stopped"
        for link in self._links.values():
            link.send(op="shutdown")

    def step(self):
        """One decode step through all ranks; blocks while a rank does not answer."""
        self._count += 1
        for link in self._links.values():
            link.send(op="step", step=self._count)
        self._wait(lambda: all(self._steps.get(n, 0) >= self._count for n in range(self.spec["world"])))


class Local(Multi):
    """Ranks on this node, and with --nnodes the ranks of followers that connect to the master's port."""

    def start_ranks(self):
        """Starts the ranks of this node."""
        start_local_ranks(self.spec, self.master, self.lose)


class Sglang(Multi):
    """SGLang's ranks, one per node: the rank of this node is a thread, the others connect.

    Then all ranks read a queue on the address that this node detects for itself, on a separate port.
    """

    sees_all = True

    def __init__(self, spec):
        super().__init__(spec, spec["master_addr"], spec["master_port"])
        address = wire.host_ip(("SGLANG_HOST_IP", "HOST_IP"), "0.0.0.0") if spec["world"] > 1 else "127.0.0.1"
        barrier = threading.Barrier(spec["world"])

        def read(channel, _peer):
            barrier.wait()
            channel.send(ready=True)

        try:
            self.greeting = {"queue": wire.listen(address, int(os.environ.get("SGLANG_PORT", 0)), read)}
        except OSError as error:
            raise ExecutorError("zmq.error.ZMQError: %s (addr='tcp://%s')" % (os.strerror(error.errno), address))

    def start_ranks(self):
        """Runs the rank of this node."""
        faults.obey()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        with contextlib.suppress(rank.RankError):  # reported over its link
            rank.run(dict(self.spec, rank=0, local_rank=0, master=self.master))


def start_local_ranks(spec, master, lost):
    """Starts the ranks of this node as children of this process; returns the processes."""
    share = spec["world"] // spec["nnodes"]
    first = spec["node_rank"] * share
    return [
        start_local_rank(dict(spec, rank=first + local, local_rank=local, master=master, env=None), lost)
        for local in range(share)
    ]


def start_local_rank(spec, lost):
    """Starts a rank as a child of this process; calls ``lost(reason)`` when it exits."""
    name = rank.name_of(spec["rank"], spec["tp"], spec["pp"])
    process, channel = proc.spawn("rank", "VLLM::" + name)
    channel.send(**spec)

    def watch():
        reasons = [m["failed"] for m in channel.messages() if "failed" in m]
        reasons.append("Worker proc VLLM::%s died unexpectedly (exit code: %s)" % (name, process.wait()))
        log.error("multiproc_executor.py:315", "%s, shutting down executor.", reasons[-1])
        lost(reasons[0])

    threading.Thread(target=watch, daemon=True).start()
    return process


class Ray(Multi):
    """Ranks placed by Ray, one per GPU, the driver's node first."""

    def start_ranks(self):
        """Waits for the placement group, and makes each raylet start its rank."""
        address = os.environ.get("RAY_ADDRESS") or "127.0.0.1:6379"
        try:
            cluster = rayclient.connect(address)
        except (OSError, rayclient.Refused) as error:
            raise ExecutorError("ConnectionError: Failed to connect to GCS at %s: %s" % (address, error))
        log.ray("worker.py:1841", "Connecting to existing Ray cluster at address: %s..." % address)
        log.ray("worker.py:2038", "Connected to Ray cluster.")
        log.info("ray_utils.py:607", "No current placement group found. Creating a new placement group.")
        env = carried_env()
        for number, node in enumerate(self._place(cluster)):
            spec = dict(self.spec, rank=number, local_rank=0, master=self.master, env=env)
            threading.Thread(target=self._run_rank, args=(spec, node), daemon=True).start()
        threading.Thread(target=self._watch_cluster, args=(cluster,), daemon=True).start()

    def _place(self, cluster):
        deadline = time.monotonic() + PLACEMENT_S
        while True:
            try:
                nodes = rayclient.ask(cluster, "place", bundles=self.spec["world"])
            except ConnectionError as error:
                raise ExecutorError("ConnectionError: %s" % error)
            if nodes:
                return nodes
            if time.monotonic() > deadline:
                raise ExecutorError(
                    "ValueError: Cannot provide a placement group requiring %.1f GPUs within %d seconds.\nTensor "
                    "parallel size may exceed available GPUs in your cluster." % (self.spec["world"], PLACEMENT_S)
                )
            time.sleep(0.1)

    def _watch_cluster(self, cluster):
        for _ in cluster.messages():
            continue
        self.lose(
            "ray.exceptions.RaySystemError: System error: Failed to connect to GCS; the head of the Ray cluster is gone"
        )

    def _run_rank(self, spec, node):
        """Makes the node's raylet run a rank, repeats its log, and reports the end of the rank or the node."""
        number, address = spec["rank"], node["NodeManagerAddress"]
        title = "VLLM::%s ray::RayWorkerProc.run RayWorkerWrapper" % rank.name_of(number, spec["tp"], spec["pp"])
        pid, reason = None, "The actor is dead because its node has died. Node Id: %s" % node["NodeID"]
        # Ray shows the address only of other nodes, and colours the name even if the stream is not a terminal
        suffix = "" if address == self.master[0] else ", ip=%s" % address
        with contextlib.suppress(OSError, rayclient.Refused):
            raylet = rayclient.connect("%s:%d" % (address, node["NodeManagerPort"]), title=title, spec=spec)
            for message in raylet.messages():
                if message.get("op") == "beat":
                    raylet.send(op="beat")
                    continue
                pid = message["pid"]
                if "line" in message:
                    log.emit("\x1b[36m(RayWorkerProc pid=%s%s)\x1b[0m %s" % (pid, suffix, message["line"]))
                else:
                    reason = (
                        "Worker unexpectedly exits with a connection error code 2. End of file. exit code %s"
                        % message["code"]
                    )
        log.error(
            "ray_executor_v2.py:522", "RayWorkerProc rank=[%d] died unexpectedly, shutting down executor.", number
        )
        self.lose(
            "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n"
            "\tclass_name: RayWorkerProc\n\tpid: %s\n\tip: %s\n%s" % (pid, address, reason)
        )


def make(spec):
    """The executor that vLLM would choose for these arguments; ExecutorError with vLLM's message if there is none."""
    world = spec["world"]
    if spec["backend"] == "sglang":
        return Sglang(spec)
    if world == 1:
        return Uni(spec)
    if spec["backend"] == "ray":
        return Ray(spec, wire.host_ip(), 0)
    if world > spec["nnodes"]:
        raise ExecutorError(
            "ValueError: World size (%d) is larger than the number of available GPUs (1) in this node." % world
        )
    return Local(spec, spec["master_addr"], spec["master_port"] if spec["nnodes"] > 1 else 0)
