"""Names that programs on a node and the controller must agree on.

Other rooms may import only this module of the room.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence

# Labels of a container; with runtime process, keys of ``labels`` in its rank.json.
LABEL_CLUSTER = "io.sparkcluster.cluster"
LABEL_GROUP = "io.sparkcluster.group"
GATEWAY_GROUP = "gateway"  # of a gateway's container, which is not an engine
LABEL_NODE = "io.sparkcluster.node"
LABEL_RANK = "io.sparkcluster.rank"
LABEL_RELEASE = "io.sparkcluster.release"
LABEL_PLAN = "io.sparkcluster.plan"
LABEL_STATE_DIR = "io.sparkcluster.state_dir"
LABEL_RANK_DIR = "io.sparkcluster.rank_dir"
LABEL_RUNTIME = "io.sparkcluster.runtime"
# Seconds that an engine gives requests in flight to finish after SIGTERM; missing if it aborts them.
LABEL_DRAIN = "io.sparkcluster.drain_s"
LABEL_MEASURE = "io.sparkcluster.measure"

# Files in the directory of a rank.
LAUNCHER_FILE = "launcher.json"
ENTRY_FILE = "entry.py"
RANK_FILE = "rank.json"
SECRETS_FILE = "secrets.env"
MEMORY_FILE = "memory.json"
SHARED_MEMORY = "/dev/shm"
SHARED_NAME = r"^[!-.0-~]*[!-\-0-~][!-.0-~]*$"  # of a file there: one shell word, no path
SWITCH_FILE = "switch.json"  # of a cluster: an unfinished switch to another release
START_FILE = "start.json"  # of a cluster: the steps that start this node's rank of the recorded release
# Of an enabled cluster: a directory, and files in it.
ENABLED_DIR = "enabled"
GUARD_FILE = "guard.py"
CONFIG_FILE = "config.json"
WAITS_FILE = "waits.json"
GAVE_UP = "it gave up: "  # prefix of its text if only an operator can start the group
HCA_ERRORS = ("link_downed", "symbol_error", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err")
"""Error counters of an HCA's port: its link, and RoCE packets that were lost, late or not acknowledged
(NVIDIA, Understanding mlx5 Linux Counters and Status Parameters)."""
GUARD_EVENTS = ("restart", "load", "serving", "failed", "load-failed", "gave-up", "victim", "on_event-failed")
"""Acts in a guard's journal."""
STOPPED_FILE = "stopped"  # written by down: nothing is started until the next release is recorded
BIND_FILE = "bind.so"
_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*")  # part of a repository's name, as allowed by Docker
_TAG = re.compile(r":[^/]*$")  # a colon before a slash belongs to a port
PACKAGES = ("aiohttp", "prometheus_client")  # imported by the gateway's program
COMPILERS = ("cc", "gcc", "clang", "tcc")  # compilers that may build ``bind.so``

# Prefixes of interfaces that lead to no other node: container networks use the same addresses on every node.
CONTAINER_INTERFACES = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "podman", "lxc")
# Prefixes of interfaces that reach other nodes through a tunnel, at a fraction of the wire's speed.
TUNNEL_INTERFACES = ("tun", "tap", "wg", "tailscale", "zt")
VIRTUAL_INTERFACES = CONTAINER_INTERFACES + TUNNEL_INTERFACES

# Maximum entries in lists of a worker: failed sources, corrupt files, files that were moved aside.
MOST_NAMED = 32

# Suffix of a user's file that staging has replaced.
REPLACED = ".replaced"
# Suffixes of files that are being written or were replaced; they belong to no model.
UNFINISHED = (".partial", ".incomplete", ".lock", REPLACED)

# Seconds from SIGTERM to SIGKILL, also after a failed launch: an engine that is killed while it releases its memory
# leaves shared memory behind, and on a Spark GPU memory (source: check RUN-005).
GRACE_S = 30

VICTIM, VICTIM_LINE = 90, "phase=victim "
"""Exit code of a rank that its launcher killed to protect the node's memory, used by no engine or shell; and the
prefix of the reason in its log."""

HUB_ADDRESS = "https://huggingface.co"
"""The Hugging Face hub, unless HF_ENDPOINT names a mirror."""


def engine_address(words: Sequence[str], flags: Mapping[str, str]) -> str:
    """``host:port`` of an engine's API as reached from its node, from its command line and the engine's ``flags``."""
    values = dict(itertools.pairwise(words))
    return "%s:%s" % (connectable(values.get(flags["host"], "127.0.0.1")), values.get(flags["port"], "8000"))


def connectable(host: str) -> str:
    """Address to connect to, on the same node, for a server that listens on ``host``."""
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host


BLOBS = "blobs/sha256/"
"""Directory of the files of an image, named by their SHA-256."""
WHOLE = ".whole"
"""File in a directory of ``state_dir/files`` that marks it as complete."""


def hub_folder(model_id: str) -> str:
    """Directory of a model in the cache of the Hugging Face hub, below HF_HOME."""
    return "hub/models--" + model_id.replace("/", "--")


def kept_image(cluster: str, number: int) -> str:
    """The tag for the image of a node's rank of release ``number`` of ``cluster``."""
    return "%s:%06d" % (kept_repository(cluster), number)


def kept_repository(cluster: str) -> str:
    """Repository of the tags of ``cluster``; a name that Docker does not allow gets a hash as suffix."""
    if not _COMPONENT.fullmatch(cluster):
        allowed = re.sub("[^a-z0-9]+", "-", cluster.lower()).strip("-")
        cluster = "%s-%s" % (allowed, hashlib.sha256(cluster.encode()).hexdigest()[:8])
    return "sparkcluster/" + cluster


def registry_of(reference: str) -> str:
    """Host of the registry in an image reference; empty for Docker Hub, the default of ``docker login``."""
    first, slash, _ = reference.partition("/")
    # as in Docker: repositories of the Hub have no capitals
    is_host = "." in first or ":" in first or first == "localhost" or first != first.lower()
    return first if slash and is_host else ""


def repository_of(reference: str) -> str:
    """The repository of an image reference as listed by Docker: without tag, digest and the name of Docker Hub."""
    name = _TAG.sub("", reference.partition("@")[0])
    return name.removeprefix("docker.io/").removeprefix("library/")


def staged_as(reference: str) -> str:
    """Name for a copy of an image: Docker cannot tag with a digest, so the digest becomes a tag.

    ``docker load`` loses a repository's digests (moby#22011), so the reference itself would not be found.
    """
    name, at, digest = reference.partition("@")
    return "%s:%s" % (_TAG.sub("", name), digest.replace(":", "-")) if at else reference


# Llama 3.1 70B in FP8, a dense model that barely fits, prefills 803 tokens/s on a Spark (LMSYS,
# https://lmsys.org/blog/2025-10-13-nvidia-dgx-spark). With 128K tokens, attention doubles the cost (4 * tokens *
# 8192 * 80 layers FLOP per token, half of it on average, plus 2 * 70e9); this is half of the remaining rate.
PREFILL_FLOOR = 200.0
"""Minimum prefill rate of any model, in tokens per second."""
_LEAST_STALL_S = 60.0
UNKNOWN_CONTEXT = 262_144
"""Maximum prompt length in tokens if the engine does not report it; that of most models."""


def stall_limit_s(context: int | None) -> float:
    """Seconds without movement after which an engine with a context of ``context`` tokens is considered dead."""
    return max(_LEAST_STALL_S, (context or UNKNOWN_CONTEXT) / PREFILL_FLOOR)


class Movement:
    """Measures how long an engine's counters have not changed.

    Attributes:
        moved: whether two readings differed.
    """

    def __init__(self) -> None:
        self.moved = False
        self._last: dict[str, float] | None = None
        self._unread = True
        self._moved_at_s = 0.0

    def feed(self, at_s: float, counters: Mapping[str, float]) -> None:
        """Add the counters ``at_s`` seconds after the request was sent; empty if they could not be read."""
        self._unread = not counters
        if counters and counters != self._last:
            self.moved = self._last is not None
            self._moved_at_s = at_s
            self._last = dict(counters)

    def stalled_s(self, now_s: float) -> float | None:
        """Seconds without a change until ``now_s``; None if the counters cannot be read."""
        return None if self._unread else now_s - self._moved_at_s
