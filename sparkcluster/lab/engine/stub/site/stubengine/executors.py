"""How the engine core gets its ranks: none of its own, started here, started by Ray, or met from other nodes."""

import json
import os
import socket
import threading
import time
import uuid

from stubengine import gcs, log, model, proc, rank, rayclient
from stubengine.wire import Channel, host_ip, nccl_interface, setting

PLACEMENT_S = 1800.0  # vLLM's own patience with a placement group
# vLLM 0.32, WORKER_SPECIFIC_ENV_VARS of its Ray executors
OWN = frozenset(
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


def rank_spec(spec, master, key, number, local_rank, env=None, outlive=False):
    """The configuration that a rank is started with."""
    return {
        "rank": number,
        "local_rank": local_rank,
        "world": spec["tp"] * spec["pp"],
        "tp": spec["tp"],
        "pp": spec["pp"],
        "key": key,
        "master": list(master),
        "model": spec["model"],
        "revision": spec["revision"],
        "env": env,
        "outlive": outlive,
    }


class ExecutorError(Exception):
    """The ranks cannot be had, or one is lost."""


def config_root():
    """VLLM_CONFIG_ROOT, with vLLM's default."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.environ.get("VLLM_CONFIG_ROOT") or os.path.join(base, "vllm")


def carried_env():
    """Every variable of the driver, but for those of a worker's own and those named in the carry-over file."""
    path = os.path.join(config_root(), "ray_non_carry_over_env_vars.json")
    left = set()
    try:
        with open(path, encoding="utf-8") as f:
            left = set(json.load(f))
    except FileNotFoundError:
        pass  # it is optional
    except ValueError:
        log.warning("ray_env.py:28", "Failed to parse %s. Using an empty set for non-carry-over env vars.", path)
    if left:
        log.info("ray_env.py:108", "RAY_NON_CARRY_OVER_ENV_VARS from config: %s", left)
    return {k: v for k, v in os.environ.items() if k not in OWN and k not in left}


class Uni:
    """World size one: the core is the rank."""

    def __init__(self, spec):
        self._spec = spec

    def start(self, failed):
        """Loads in this process; nothing can be lost later."""
        threading.Thread(target=rank.obey, daemon=True).start()

    def load(self):
        """Digest of the weights."""
        rank.check_fabric()
        rank.dump_env(0)
        log.info("gpu_model_runner.py:5040", "Starting to load model %s...", self._spec["model"])
        return rank.load(model.find(self._spec["model"], self._spec["revision"]), chatty=True)

    def step(self):
        """One decode step."""


class Multi:
    """Ranks as processes that call this one; subclasses start them."""

    remote_loss_hangs = False

    def __init__(self, spec, address, port=0):
        self.spec = spec
        self.world = spec["tp"] * spec["pp"]
        self.key = uuid.uuid4().hex
        self.dead = None
        self._failed = None
        self._changed = threading.Condition()
        self._links = {}  # rank -> {"gloo": Channel, "nccl": Channel}
        self._loaded = {}
        self._steps = {}
        self._count = 0
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listener.bind((address, port))
        except OSError as error:
            raise ExecutorError(
                "RuntimeError: The server socket has failed to listen on any local network address. "
                "server %s:%d: %s" % (address, port, error.strerror)
            )
        self._listener.listen(64)
        self.master = self._listener.getsockname()

    def start(self, failed):
        """Starts accepting and the ranks; ``failed(reason)`` is called when one is lost while serving."""
        self._failed = failed
        threading.Thread(target=self._accept, daemon=True).start()
        self.start_ranks()

    def start_ranks(self):
        """Starts this node's part of the ranks."""
        raise ExecutorError("no ranks to start")

    def rank_spec(self, number, local_rank, env=None):
        """The configuration of a rank of this executor."""
        return rank_spec(self.spec, self.master, self.key, number, local_rank, env=env)

    def lose(self, reason):
        """Takes note that a rank is gone."""
        with self._changed:
            if self.dead is not None:
                return
            self.dead = reason
            self._changed.notify_all()
        if len(self._loaded) == self.world and self._failed is not None:
            self._failed(reason)

    def _accept(self):
        while True:
            try:
                sock, peer = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._link, args=(Channel(sock), peer[0]), daemon=True).start()

    def _foreign(self, kind, peer):
        """Whether the caller's address lies outside the network this node's own variable points at."""
        if kind == "gloo":
            return not rank.on_same_network(peer, os.environ.get("GLOO_SOCKET_IFNAME"))
        try:
            mine = nccl_interface(os.environ.get("NCCL_SOCKET_IFNAME"))
        except LookupError:
            return False  # this node's own rank says so itself
        return mine is not None and not rank.on_same_network(peer, mine[0])

    def _link(self, channel, peer):
        hello = channel.receive()
        if not hello or hello.get("key") not in (self.key, "any"):
            channel.close()
            return
        kind, number = hello["hello"], hello["rank"]
        if self._foreign(kind, peer):
            threading.Event().wait()  # no way back to that address: silence, as on real nodes
        with self._changed:
            self._links.setdefault(number, {})[kind] = channel
            self._changed.notify_all()
            # a full mesh: nobody goes on before everybody is there
            while self.dead is None and sum(kind in links for links in self._links.values()) < self.world:
                self._changed.wait()
        channel.send(ok=True)
        for message in channel.messages():
            with self._changed:
                if "loaded" in message:
                    self._loaded[number] = message["loaded"]
                elif "step" in message:
                    self._steps[number] = message["step"]
                self._changed.notify_all()
            if "failed" in message:
                self.lose("Worker %d failed: %s" % (number, message["failed"]))
        if kind == "gloo" and number not in self._loaded:
            time.sleep(0.3)  # whoever started the rank knows better why it went
            self.lose(
                "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:535] Connection closed by peer "
                "[%s] (rank %d)" % (peer, number)
            )

    def _wait(self, done, limit_s, complaint):
        deadline = None if limit_s is None else time.monotonic() + limit_s
        with self._changed:
            while not done():
                if self.dead is not None:
                    raise ExecutorError(self.dead)
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise ExecutorError(complaint())
                self._changed.wait(left)

    def load(self):
        """Waits for all ranks, then for their weights; one digest for all, or another when the copies differ."""
        limit_s = setting("STUB_RENDEZVOUS_S", rank.RENDEZVOUS_S) + 2
        self._wait(
            lambda: sum(len(k) == 2 for k in self._links.values()) == self.world,
            limit_s,
            lambda: (
                "torch.distributed.DistStoreError: Timed out after %.0f seconds waiting for clients. "
                "%d/%d clients joined." % (limit_s, len(self._links), self.world)
            ),
        )
        self._wait(lambda: len(self._loaded) == self.world, None, str)
        digests = set(self._loaded.values())
        return digests.pop() if len(digests) == 1 else "differ:" + "+".join(sorted(digests))

    def step(self):
        """One decode step through all ranks; blocks for as long as one does not answer."""
        self._count += 1
        for link in self._links.values():
            link["gloo"].send(op="step", step=self._count)
        self._wait(lambda: all(self._steps.get(n, 0) >= self._count for n in range(self.world)), None, str)


class Local(Multi):
    """Ranks on this node, and with --nnodes those of followers that call the master's port."""

    def __init__(self, spec):
        native = spec["nnodes"] > 1
        super().__init__(spec, spec["master_addr"] if native else "127.0.0.1", spec["master_port"] if native else 0)
        self.key = "any" if native else self.key

    def start_ranks(self):
        """This node's share of the ranks."""
        for local in range(self.world // self.spec["nnodes"]):
            start_local(self.rank_spec(local, local), self.lose)


def start_local(spec, lost):
    """Starts one rank under this process and tells ``lost(reason)`` when it ends."""
    name = rank.name_of(spec["rank"], spec["tp"], spec["pp"])
    process, channel = proc.spawn("rank", "VLLM::" + name)
    channel.send(**spec)

    def watch():
        said = [m["failed"] for m in channel.messages() if "failed" in m]
        code = process.wait()
        log.error(
            "multiproc_executor.py:315",
            "Worker proc VLLM::%s died unexpectedly (exit code: %s), shutting down executor.",
            name,
            code,
        )
        lost(said[-1] if said else "Worker proc VLLM::%s died unexpectedly (exit code: %s)" % (name, code))

    threading.Thread(target=watch, daemon=True).start()
    return process


class Ray(Multi):
    """Ranks placed by Ray, one to a node's GPU, the driver's node first."""

    def __init__(self, spec):
        super().__init__(spec, host_ip())
        self._channel = None
        self._nodes = []

    def start_ranks(self):
        """Waits for the placement group and has each raylet start its rank."""
        address = rayclient.current_cluster()
        if not address:
            raise ExecutorError("ConnectionError: Could not find any running Ray instance.")
        try:
            self._channel = rayclient.connect(address, "client")
        except (OSError, rayclient.Refused, gcs.TokenError) as error:
            raise ExecutorError("ConnectionError: Failed to connect to GCS at %s: %s" % (address, error))
        if os.environ.get("RAY_ADDRESS"):
            log.ray("worker.py:1691", "Using address %s set in the environment variable RAY_ADDRESS" % address)
        log.ray("worker.py:1841", "Connecting to existing Ray cluster at address: %s..." % address)
        log.ray("worker.py:2038", "Connected to Ray cluster.")
        log.info("ray_utils.py:607", "No current placement group found. Creating a new placement group.")
        self._nodes = self._place()
        env = carried_env()
        seen = {}
        for number, node in enumerate(self._nodes):
            local = seen.setdefault(node["NodeID"], 0)
            seen[node["NodeID"]] += 1
            title = "VLLM::%s ray::RayWorkerProc.run RayWorkerWrapper" % rank.name_of(
                number, self.spec["tp"], self.spec["pp"]
            )
            self._channel.send(
                op="start",
                key="%s/%d" % (self.key, number),
                node_id=node["NodeID"],
                title=title,
                spec=self.rank_spec(number, local, env=env),
            )
        threading.Thread(target=self._events, daemon=True).start()

    def _place(self):
        begun, next_word = time.monotonic(), 10.0
        limit_s = setting("STUB_PG_WAIT_S", PLACEMENT_S)
        bundles = [{"GPU": 1.0}] * self.world
        while True:
            try:
                nodes = rayclient.ask(self._channel, "place", bundles=self.world)["nodes"]
            except ConnectionError as error:
                raise ExecutorError("ConnectionError: %s" % error)
            if nodes:
                return nodes
            waited = time.monotonic() - begun
            if waited > limit_s:
                raise ExecutorError(
                    "ValueError: Cannot provide a placement group requiring %.1f GPUs (placement_group_specs=%s) "
                    "within %d seconds.\nTensor parallel size may exceed available GPUs in your cluster. Check "
                    "resources with `ray status` and `ray list nodes`." % (self.world, bundles, limit_s)
                )
            if waited > next_word:
                next_word *= 2
                log.info(
                    "ray_utils.py:467",
                    "Waiting for creating a placement group of specs for %d seconds. specs=%s."
                    " Check `ray status` and `ray list nodes` to see if you have enough resources, and make sure "
                    "the IP addresses used by ray cluster are the same as VLLM_HOST_IP environment variable "
                    "specified in each node if you are running on a multi-node.",
                    waited,
                    bundles,
                )
            time.sleep(0.1)

    def _events(self):
        for message in self._channel.messages():
            if message.get("op") == "log":
                # Ray names the address of other nodes alone, and colours the name whatever the stream is
                there = "" if message["ip"] == self.master[0] else ", ip=%s" % message["ip"]
                log.emit("\x1b[36m(RayWorkerProc pid=%s%s)\x1b[0m %s" % (message["pid"], there, message["line"]))
            elif message.get("op") == "exit":
                self._rank_gone(message)
        self.lose(
            "ray.exceptions.RaySystemError: System error: Failed to connect to GCS; the head of the Ray cluster is gone"
        )

    def _rank_gone(self, message):
        number = int(message["key"].rpartition("/")[2])
        node = self._nodes[number]
        because = (
            "The actor is dead because its node has died. Node Id: %s" % node["NodeID"]
            if message.get("node_died")
            else "Worker unexpectedly exits with a connection error code 2. End of file. exit code %s"
            % (message.get("code"),)
        )
        log.error(
            "ray_executor_v2.py:522", "RayWorkerProc rank=[%d] died unexpectedly, shutting down executor.", number
        )
        self.lose(
            "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n"
            "\tclass_name: RayWorkerProc\n\tpid: %s\n\tip: %s\n%s"
            % (message.get("pid"), node["NodeManagerAddress"], because)
        )


def make(spec):
    """The executor that vLLM would choose for these arguments; ExecutorError in its words when there is none."""
    world = spec["tp"] * spec["pp"]
    gpus = setting("STUB_GPUS", 1)
    if world == 1:
        return Uni(spec)
    if spec["backend"] == "ray":
        return Ray(spec)
    if world // spec["nnodes"] > gpus:
        raise ExecutorError(
            "ValueError: World size (%d) is larger than the number of available GPUs (%d) in this node. If this is "
            "intentional and you are using:\n- ray, set '--distributed-executor-backend ray'.\n"
            "- multiprocessing, set '--nnodes' appropriately." % (world, gpus)
        )
    return Local(spec)
