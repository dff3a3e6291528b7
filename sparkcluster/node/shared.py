"""Names that programs on a node and the controller must agree on. Python 3.8, standard library only.

The one module of this room that other rooms import: what both sides say is written here once.
"""

from __future__ import annotations

# Labels of a container; with runtime process, keys of ``labels`` in its rank.json.
LABEL_CLUSTER = "io.sparkcluster.cluster"
LABEL_GROUP = "io.sparkcluster.group"
LABEL_NODE = "io.sparkcluster.node"
LABEL_RANK = "io.sparkcluster.rank"
LABEL_RELEASE = "io.sparkcluster.release"
LABEL_PLAN = "io.sparkcluster.plan"
LABEL_STATE_DIR = "io.sparkcluster.state_dir"
LABEL_RANK_DIR = "io.sparkcluster.rank_dir"
LABEL_RUNTIME = "io.sparkcluster.runtime"
LABEL_MEASURE = "io.sparkcluster.measure"

# Files in the directory of a rank.
LAUNCHER_FILE = "launcher.json"
ENTRY_FILE = "entry.py"
RANK_FILE = "rank.json"
MEMORY_FILE = "memory.json"
SHARED_MEMORY = "/dev/shm"
SHARED_NAME = r"^[!-.0-~]*[!-\-0-~][!-.0-~]*$"  # of a file in it, in a command: one word, no other folder
BIND_FILE = "bind.so"
COMPILERS = ("cc", "gcc", "clang", "tcc")  # what may build it

# Prefixes of interfaces behind which no other node is: container networks have the same addresses on every node.
CONTAINER_INTERFACES = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "podman", "lxc")
# Prefixes of interfaces that reach other nodes through a tunnel, at a fraction of the wire's speed.
TUNNEL_INTERFACES = ("tun", "tap", "wg", "tailscale", "zt")
VIRTUAL_INTERFACES = CONTAINER_INTERFACES + TUNNEL_INTERFACES

# The most lines in one document of the watch program: reading their progress takes the controller 30 ms.
BATCH_LINES = 2000

# The most that a worker says of one kind: nodes that it left, files that arrived corrupt, files that it renamed.
MOST_NAMED = 32

# What a file of the user's is called from then on, where staging puts another one in its place.
REPLACED = ".replaced"
# Ends of the names of files that are being written, or were replaced; none belongs to a model.
UNFINISHED = (".partial", ".incomplete", ".lock", REPLACED)

# The Hugging Face hub, unless HF_ENDPOINT names a mirror.
HUB = ("huggingface.co", 443)
HUB_ADDRESS = "https://" + HUB[0]


WHOLE = ".whole"
"""File that is written last into a directory of ``state_dir/files``."""


def hub_folder(model_id: str) -> str:
    """Directory of a model in the cache of the Hugging Face hub, below HF_HOME."""
    return "hub/models--" + model_id.replace("/", "--")


def registry_of(reference: str) -> str:
    """Host of the registry in an image reference; empty for Docker Hub, which ``docker login`` means by itself."""
    first, slash, _ = reference.partition("/")
    # as Docker reads it: repositories of the Hub have no capitals
    is_host = "." in first or ":" in first or first == "localhost" or first != first.lower()
    return first if slash and is_host else ""


def repository_of(reference: str) -> str:
    """The repository of an image reference as Docker lists it: without tag, digest and the names of Docker Hub."""
    name = reference.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    repository = head if colon and "/" not in tag else name
    for prefix in ("docker.io/", "library/"):
        repository = repository[len(prefix) :] if repository.startswith(prefix) else repository
    return repository
