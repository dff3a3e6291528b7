"""Names that programs on a node and the controller must agree on.

The one module of this room that other rooms import: what both sides say is written here once.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence

# Labels of a container; with runtime process, keys of ``labels`` in its rank.json.
LABEL_CLUSTER = "io.sparkcluster.cluster"
LABEL_GROUP = "io.sparkcluster.group"
GATEWAY_GROUP = "gateway"  # of the container of a gateway, which is no engine
LABEL_NODE = "io.sparkcluster.node"
LABEL_RANK = "io.sparkcluster.rank"
LABEL_RELEASE = "io.sparkcluster.release"
LABEL_PLAN = "io.sparkcluster.plan"
LABEL_STATE_DIR = "io.sparkcluster.state_dir"
LABEL_RANK_DIR = "io.sparkcluster.rank_dir"
LABEL_RUNTIME = "io.sparkcluster.runtime"
# Seconds that an engine lets requests in flight finish after SIGTERM; none where it aborts them.
LABEL_DRAIN = "io.sparkcluster.drain_s"
LABEL_MEASURE = "io.sparkcluster.measure"

# Files in the directory of a rank.
LAUNCHER_FILE = "launcher.json"
ENTRY_FILE = "entry.py"
RANK_FILE = "rank.json"
MEMORY_FILE = "memory.json"
SHARED_MEMORY = "/dev/shm"
SHARED_NAME = r"^[!-.0-~]*[!-\-0-~][!-.0-~]*$"  # of a file in it, in a command: one word, no other folder
SWITCH_FILE = "switch.json"  # of a cluster: the switch to another release that is under way
START_FILE = "start.json"  # of a cluster: what starts this node's rank of the recorded release
# Of a cluster that is enabled: a directory, and files in it.
ENABLED_DIR = "enabled"
GUARD_FILE = "guard.py"
CONFIG_FILE = "config.json"
WAITS_FILE = "waits.json"
GAVE_UP = "it gave up: "  # begins what is in it, once nothing starts the group until an operator does
HCA_ERRORS = ("link_downed", "symbol_error", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err")
"""Counters of an HCA's port that mean trouble: its link, and RoCE packets that were lost, late or not acknowledged
(NVIDIA, Understanding mlx5 Linux Counters and Status Parameters)."""
GUARD_EVENTS = ("restart", "load", "serving", "failed", "load failed", "gave up", "victim", "on_event failed")
"""What a guard journals."""
STOPPED_FILE = "stopped"  # written by down: nothing starts until the next release is recorded
BIND_FILE = "bind.so"
_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*")  # of a repository's name, as Docker has it
_TAG = re.compile(r":[^/]*$")  # a colon before a slash is that of a port
PACKAGES = ("aiohttp", "prometheus_client")  # what the gateway's program imports
COMPILERS = ("cc", "gcc", "clang", "tcc")  # what may build it

# Prefixes of interfaces behind which no other node is: container networks have the same addresses on every node.
CONTAINER_INTERFACES = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "podman", "lxc")
# Prefixes of interfaces that reach other nodes through a tunnel, at a fraction of the wire's speed.
TUNNEL_INTERFACES = ("tun", "tap", "wg", "tailscale", "zt")
VIRTUAL_INTERFACES = CONTAINER_INTERFACES + TUNNEL_INTERFACES

# The most that a worker says of one kind: nodes that it left, files that arrived corrupt, files that it renamed.
MOST_NAMED = 32

# What a file of the user's is called from then on, where staging puts another one in its place.
REPLACED = ".replaced"
# Ends of the names of files that are being written, or were replaced; none belongs to a model.
UNFINISHED = (".partial", ".incomplete", ".lock", REPLACED)

# Seconds from SIGTERM to SIGKILL, after a failed launch too: an engine that is killed while it releases its memory
# leaves shared memory behind, and on a Spark memory of the GPU (source: check RUN-005).
GRACE_S = 30

VICTIM, VICTIM_LINE = 90, "phase=victim "
"""Of a rank that its launcher killed to protect the node's memory: its exit code, which no engine or shell has, and
what comes before the reason in its log."""

HUB_ADDRESS = "https://huggingface.co"
"""The Hugging Face hub, unless HF_ENDPOINT names a mirror."""


def engine_address(words: Sequence[str], flags: Mapping[str, str]) -> str:
    """``host:port`` at which its node reaches an engine's API, by its command line and the engine's ``flags``."""
    values = dict(itertools.pairwise(words))
    return "%s:%s" % (connectable(values.get(flags["host"], "127.0.0.1")), values.get(flags["port"], "8000"))


def connectable(host: str) -> str:
    """Address at which its own node reaches what listens on ``host``."""
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host


BLOBS = "blobs/sha256/"
"""Folder of the files of an image, which are called by their SHA-256."""
WHOLE = ".whole"
"""File that is written last into a directory of ``state_dir/files``."""


def hub_folder(model_id: str) -> str:
    """Directory of a model in the cache of the Hugging Face hub, below HF_HOME."""
    return "hub/models--" + model_id.replace("/", "--")


def kept_image(cluster: str, number: int) -> str:
    """The tag on the image that a rank of release ``number`` of ``cluster`` runs on a node."""
    return "%s:%06d" % (kept_repository(cluster), number)


def kept_repository(cluster: str) -> str:
    """Repository of the tags of ``cluster``; a name that Docker does not allow in one is followed by its hash."""
    if not _COMPONENT.fullmatch(cluster):
        allowed = re.sub("[^a-z0-9]+", "-", cluster.lower()).strip("-")
        cluster = "%s-%s" % (allowed, hashlib.sha256(cluster.encode()).hexdigest()[:8])
    return "sparkcluster/" + cluster


def registry_of(reference: str) -> str:
    """Host of the registry in an image reference; empty for Docker Hub, which ``docker login`` means by itself."""
    first, slash, _ = reference.partition("/")
    # as Docker reads it: repositories of the Hub have no capitals
    is_host = "." in first or ":" in first or first == "localhost" or first != first.lower()
    return first if slash and is_host else ""


def repository_of(reference: str) -> str:
    """The repository of an image reference as Docker lists it: without tag, digest and the names of Docker Hub."""
    name = _TAG.sub("", reference.partition("@")[0])
    return name.removeprefix("docker.io/").removeprefix("library/")


def staged_as(reference: str) -> str:
    """Name that a copy of an image gets: Docker tags nothing with a digest, so that becomes a tag of its own.

    ``docker load`` loses the digests of a repository (moby#22011), so the reference itself would not be found.
    """
    name, at, digest = reference.partition("@")
    return "%s:%s" % (_TAG.sub("", name), digest.replace(":", "-")) if at else reference


# Llama 3.1 70B in FP8, a dense model that barely fits, prefills 803 tokens/s on a Spark (LMSYS,
# https://lmsys.org/blog/2025-10-13-nvidia-dgx-spark). Over 128K tokens attention costs as much again (4 * tokens *
# 8192 * 80 layers FLOP per token, half of it on average, beside 2 * 70e9), so this is half of what is left.
PREFILL_FLOOR = 200.0
"""Tokens per second that any model prefills at least."""
_LEAST_STALL_S = 60.0
UNKNOWN_CONTEXT = 262_144
"""Tokens of the longest prompt where the engine does not say it: that of most models."""


def stall_limit_s(context: int | None) -> float:
    """Seconds without movement after which an engine that serves ``context`` tokens is dead."""
    return max(_LEAST_STALL_S, (context or UNKNOWN_CONTEXT) / PREFILL_FLOOR)


class Movement:
    """For how long an engine's counters have not moved.

    Attributes:
        moved: whether two readings differed.
    """

    def __init__(self) -> None:
        self.moved = False
        self._last: dict[str, float] | None = None
        self._unread = True
        self._moved_at_s = 0.0

    def feed(self, at_s: float, counters: Mapping[str, float]) -> None:
        """Take in the counters ``at_s`` seconds after the request was sent; none where they could not be read."""
        self._unread = not counters
        if counters and counters != self._last:
            self.moved = self._last is not None
            self._moved_at_s = at_s
            self._last = dict(counters)

    def stalled_s(self, now_s: float) -> float | None:
        """Seconds without movement until ``now_s``; None where the counters cannot be read: no evidence of either."""
        return None if self._unread else now_s - self._moved_at_s
