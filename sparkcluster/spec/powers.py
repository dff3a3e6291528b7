"""Powers: what playbook and inventory can do beyond serving, which need permission, and which ``up`` asks about."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sparkcluster import engines
from sparkcluster.spec import Spec
from sparkcluster.spec.document import KeyPath, shown
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import REPOSITORY, Playbook, is_root

WRITABLE = ":rw"
"""Suffix of writable entries of ``permit.mounts``."""

KEYS = "~/.config/sparkcluster"
"""Local directory for API keys; CLUSTER.key belongs to a cluster, other files may not be API keys."""

SECURITY = frozenset({"IMG-004", "MDL-004", "NET-020", "NET-021", "SM121-126", "SPEC-008"})
"""Codes that protect nodes and user from a playbook, so that its ``allow`` cannot accept them."""

# Access to these gives control of the node, and no container needs them.
_SYSTEM = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var/lib/containerd",
    "/var/lib/docker", "/var/run", "/var/spool/cron",
)  # fmt: skip
_OWN = "~/.cache/sparkcluster/models/"
_HOME = re.compile(r"~|/root|/home/[^/]+")
_PERMIT = {
    "read": "mounts",
    "write": "mounts",
    "capability": "capabilities",
    "device": "devices",
    "secret": "secrets",
    "build": "builds",
}
_BUILDS = "the image, by commands run as root in docker build on a node"
# Variables of all engines that only tune computation; NAME=VALUE allows only that value.
_TUNING = """
    CUDA_DEVICE_MAX_CONNECTIONS CUDA_LAUNCH_BLOCKING CUDA_VISIBLE_DEVICES HF_HUB_DISABLE_PROGRESS_BARS
    HF_HUB_DISABLE_TELEMETRY HF_HUB_DISABLE_XET HF_HUB_ENABLE_HF_TRANSFER HF_HUB_OFFLINE=1 NCCL_ALGO NCCL_BUFFSIZE
    NCCL_CROSS_NIC NCCL_CUMEM_ENABLE NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_DMABUF_ENABLE NCCL_IB_ADAPTIVE_ROUTING
    NCCL_IB_MERGE_NICS NCCL_IB_QPS_PER_CONNECTION NCCL_IB_RETRY_CNT NCCL_IB_ROCE_VERSION_NUM NCCL_IB_SL
    NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_SUBNET_AWARE_ROUTING NCCL_IB_TC NCCL_IB_TIMEOUT NCCL_IGNORE_CPU_AFFINITY
    NCCL_MAX_CTAS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MIN_NCHANNELS NCCL_NET_GDR_C2C NCCL_NET_GDR_LEVEL
    NCCL_NSOCKS_PERTHREAD NCCL_NTHREADS NCCL_NVLS_ENABLE NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_PROTO
    NCCL_SHM_DISABLE NCCL_SOCKET_NTHREADS OMP_NUM_THREADS PYTHONUNBUFFERED PYTORCH_ALLOC_CONF
    PYTORCH_CUDA_ALLOC_CONF TOKENIZERS_PARALLELISM TORCHDYNAMO_DISABLE TORCH_CUDA_ARCH_LIST
    TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_BLOCKING_WAIT TRANSFORMERS_OFFLINE=1
"""
_AMOUNT = re.compile(r"max-[a-z-]+")
# A number, a word, or PyTorch's key:value; never a path, address, host name or dotted name.
_PLAIN = re.compile(r"-?(\d+(\.\d+)?|\.\d+)[a-z]?|[\w+-]*|[a-z]+(_[a-z]+)+:\w+", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Power:
    """A power of a playbook or inventory.

    ``permitted`` is None if it needs no permission; ``refused`` is the reason if it is never allowed.
    """

    kind: str
    what: str
    path: KeyPath = ()
    permitted: bool | None = None
    refused: str | None = None
    asks: bool = False
    target: str | None = None

    @property
    def text(self) -> str:
        """The power, with the path in the container if it has one."""
        return f"{self.what} -> {self.target}" if self.target else self.what

    @property
    def digest(self) -> str:
        """SHA-256 by which a line is accepted in any inventory."""
        return hashlib.sha256(json.dumps([self.kind, self.what]).encode()).hexdigest()


def of(playbook: Playbook, inventory: Inventory) -> list[Power]:
    """Powers of ``playbook`` on the nodes of ``inventory``."""
    permit, container = inventory.permit, playbook.container
    image = playbook.image if inventory.runtime.kind == "docker" else "none: runs without a container on the nodes"
    found = [Power("network", "everything that the node can reach (host network)")]
    found.append(Power("image", str(image), asks=image != playbook.image or not _published(playbook)))
    if container.user is not None and is_root(container.user):
        found.append(Power("user", "root, even if the image has another user", asks=True))
    found += _paths(playbook, inventory)
    for at, name in enumerate(container.cap_add):
        permitted = None if name == "SYS_NICE" else name in permit.capabilities
        found.append(Power("capability", name, ("container", "cap_add", at), permitted, asks=name != "SYS_NICE"))
    for at, name in enumerate(container.devices):
        found.append(Power("device", name, ("container", "devices", at), name in permit.devices, asks=True))
    if playbook.build is not None:
        what, path = playbook.build.context, ("build", "context")
        found.append(Power("build", what, path, what in permit.builds, asks=True, target=_BUILDS))
    for at, name in enumerate(playbook.secrets):
        found.append(Power("secret", name, ("secrets", at), name in permit.secrets, asks=True))
    found += [Power("file", each.source, asks=True, target=each.target) for each in playbook.mounts if each.is_local]
    if playbook.kept_caches and inventory.runtime.kind == "docker":
        caches = f"{normal(inventory.state_dir)}/caches"
        usual = engines.engine(playbook.engine).caches.items()
        found.append(Power("write", caches))
        unusual = (each for each in playbook.kept_caches if (each.name, each.target) not in usual)
        found += [Power("write", f"{caches}: {each.name}", asks=True, target=each.target) for each in unusual]
    code = [*(("setup", line) for line in playbook.setup), *_more_than_tuning(playbook)]
    code += [("command", shlex.join(playbook.command))] if playbook.command else []
    return [*found, *(Power(kind, what, asks=True) for kind, what in code)]


def of_inventory(spec: Spec) -> list[Power]:
    """Powers of the inventory, one per line; consent for a line holds in any inventory.

    ``image`` and ``set`` belong to the powers of the playbook.
    """
    inventory, directory = spec.inventory, spec.inventory_path.absolute().parent.resolve()
    found = [_command(each, directory) for each in inventory.after_ready]
    if inventory.on_event:
        found.append(("on_event", f"{shlex.join(inventory.on_event)} (on a head, as its user, by enable)"))
    if key := inventory.api.key:
        if key.env and key.env != "SPARK_API_KEY" and not key.env.startswith("SPARKCLUSTER_"):
            found.append(("api.key", f"${key.env}"))
        own = [f"{KEYS}/{name}.key" for name in (inventory.cluster, inventory.cluster.removesuffix(f"-{spec.model}"))]
        if key.file and _here(key.file) not in map(_here, own):
            found.append(("api.key", key.file))
    more = inventory.gateway.keys.values() if inventory.gateway else ()
    found += [("gateway.keys", f"${each.env}" if each.env else str(each.file)) for each in more]
    for node in inventory.nodes:
        ssh = inventory.node_ssh(node)
        folder, name = posixpath.split(_here(ssh.known_hosts or "~/.ssh/known_hosts"))
        # other files in ~/.ssh, such as authorized_keys, must not be used
        known = None if folder == _here("~/.ssh") and name.startswith("known_hosts") else ssh.known_hosts
        unknown = f"accept-new: unknown keys of {node.host}" if ssh.host_keys == "accept-new" else None
        written = {"identity": ssh.identity, "jump": ssh.jump, "known_hosts": known, "host_keys": unknown}
        found += [(kind, what) for kind, what in written.items() if what]
        found += [("env", what) for what in _untuned(node.env, spec.playbook.engine)]
    found += inventory.model_dump(include={"hf_home", "state_dir"}, exclude_defaults=True).items()
    if inventory.runtime.python:
        found.append(("runtime", f"{inventory.runtime.python} on the nodes, without a container"))
    found += [("ignore", code) for code in inventory.ignore if code in SECURITY]
    found += [("permit", f"{key}: {entry}") for key, entries in inventory.permit for entry in entries]
    return [Power(kind, what, asks=True) for kind, what in dict.fromkeys(found)]


def _command(words: list[str], directory: Path) -> tuple[str, str]:
    """Kind and text of an ``after_ready`` command, with ``directory`` and the hashes of files that it names there.

    In another directory or with changed files, the same command may run another program.
    """
    marks = []
    for name in dict.fromkeys([*words, *re.split(r"[\s'\"`();|&<>=,]+", " ".join(words))]):
        with contextlib.suppress(OSError, ValueError):  # not a readable file
            file = (directory / name).resolve()
            if file.is_relative_to(directory) and file.is_file():
                marks.append(f"{name} is {hashlib.sha256(file.read_bytes()).hexdigest()}")
    return "after_ready", f"{shlex.join(words)} (in {'; '.join([str(directory), *marks])})"


def permit(powers: list[Power], inventory: Inventory) -> str | None:
    """The YAML line that grants the missing permissions; None if none are missing."""
    named = {key: list(entries) for key, entries in inventory.permit.model_dump().items()}
    missing = [power for power in powers if power.permitted is False]
    for power in missing:
        entry = power.what + (WRITABLE if power.kind == "write" else "")
        if entry not in named[_PERMIT[power.kind]]:
            named[_PERMIT[power.kind]].append(entry)
    keys = (f"{key}: {json.dumps(entries, ensure_ascii=False)}" for key, entries in named.items() if entries)
    return f"permit: {{{', '.join(keys)}}}" if missing else None


def lines(
    playbook: Playbook,
    inventory: Inventory,
    variants: Iterable[Playbook] = (),
    *,
    head: str = "It needs your consent for:",
    whole: bool = False,
) -> list[str]:
    """Lines that show the powers of ``playbook`` and its ``variants`` beyond serving.

    With ``whole``, also powers that every playbook has.
    """
    powers = list(dict.fromkeys(power for each in (playbook, *variants) for power in of(each, inventory)))
    out = listed((power for power in powers if whole or power.asks), head)
    needed = permit(powers, inventory)
    return [*(out or [head]), f"  required in the inventory: {needed}"] if needed else out


def listed(powers: Iterable[Power], head: str) -> list[str]:
    """``head`` and the lines of ``powers``; empty without powers."""
    out = []
    for power in powers:
        texts = filter(None, (" ".join(line.split()) for line in power.text.split("\n")))
        out += [f"  {power.kind:<10} {shown(text, len(text) + 2)[1:-1]}" for text in texts]
    return [head, *out] if out else []


def digest(spec: Spec) -> str:
    """SHA-256 for consent: the composed playbook, the cluster, and the powers that are asked about.

    Amounts in arguments, such as the context length, are omitted, since they do not select code.
    """
    playbook, inventory = spec.playbook, spec.inventory
    asked = [(power.kind, power.text) for power in of(playbook, inventory) if power.asks]
    written = playbook.model_dump(mode="json", exclude_defaults=True)
    common = {*engines.engine(playbook.engine).common_arguments.values()}
    numbers = [name for name, value in playbook.args.items() if type(value) in {int, float}]
    amounts = {name for name in numbers if name in common or _AMOUNT.fullmatch(name)}
    written["args"] = {name: value for name, value in written.get("args", {}).items() if name not in amounts}
    content: list[object] = [inventory.cluster, inventory.runtime.kind, written, asked]
    # changed content needs new consent
    content.append(sorted([each.source, each.mark] for each in (*spec.files.values(), *filter(None, [spec.build]))))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def normal(path: str) -> str:
    """``path``, normalized; a path that leaves ~ is treated as ``/``."""
    normal = posixpath.normpath(path)
    if not normal.startswith(("/", "~")):
        return "/"
    return f"/{normal.lstrip('/')}" if normal.startswith("/") else normal


def never(path: str, inventory: Inventory | None = None, user: str | None = None) -> str | None:
    """Why ``path`` of a node is never allowed, regardless of permissions; None if it may be.

    ``user``: home directory of the node's user, if known.
    """
    place = normal(path)
    if place == "/" or place.endswith("/docker.sock") or any(_overlap(place, directory) for directory in _SYSTEM):
        return f"{place} would give the container control of the node"
    homes = place == "/home" or _HOME.fullmatch(place) or (user is not None and _within(normal(user), place))
    if homes or ".ssh" in place.split("/"):
        return f"{place} would give the container your SSH keys"
    home = normal(inventory.hf_home) if inventory else ""
    if inventory and any(_overlap(place, f"{home}/{token}") for token in ("token", "stored_tokens")):
        return f"{place} would give the container your Hugging Face token"
    if inventory and _overlap(place, normal(inventory.state_dir)):
        return f"{place} would give the container sparkcluster's state, with keys and leases"
    return "must not contain '..': after a link it points to another directory" if ".." in path.split("/") else None


def _paths(playbook: Playbook, inventory: Inventory) -> Iterator[Power]:
    """Powers over paths of the nodes."""
    hub = f"{normal(inventory.hf_home)}/hub"
    model = playbook.model.path and normal(playbook.model.path)

    def power(kind: str, path: str, key: KeyPath, *, free: bool, asks: bool, target: str | None = None) -> Power:
        refused = never(path, inventory)
        entries = [each for each in inventory.permit.mounts if kind == "read" or each.endswith(WRITABLE)]
        permitted = any(_within(path, normal(entry.removesuffix(WRITABLE))) for entry in entries)
        return Power(kind, path, key, None if free or refused else permitted, refused, asks, target)

    if model:
        hidden = "/." in model.removeprefix(_OWN)
        free = model.startswith(f"{hub}/") or not (hidden or _overlap(model, hub))
        yield power("read", model, ("model", "path"), free=free, asks=not model.startswith((f"{hub}/", _OWN)))
    for index, mount in enumerate(playbook.mounts):
        if not mount.is_local:
            source, key = normal(mount.source), ("mounts", index, "source")
            weights = source.startswith(f"{hub}/") or (model is not None and _within(source, model))
            kind, free = ("read", weights) if mount.read_only else ("write", False)
            # Always asked about: the target may replace a program of the image.
            yield power(kind, source, key, free=free, asks=True, target=mount.target)


def _within(place: str, directory: str) -> bool:
    return place == directory or place.startswith(f"{directory}/")


def _overlap(one: str, other: str) -> bool:
    return _within(one, other) or _within(other, one)


def _published(playbook: Playbook) -> bool:
    """Whether its image is in a repository of the engine's makers or of bundled playbooks."""
    if playbook.image is None:
        return True
    path, slash, name = playbook.image.partition("@")[0].rpartition("/")
    repository = path + slash + name.partition(":")[0]
    return repository.removeprefix("docker.io/") in engines.engine(playbook.engine).images


def _more_than_tuning(playbook: Playbook) -> Iterator[tuple[str, str]]:
    """Arguments and variables that are not known to only tune computation."""
    tuning = engines.engine(playbook.engine).tuning_arguments()
    for name, value in playbook.args.items():
        head, *keys = (name if name in tuning else name.removeprefix("no-")).split(".")
        allowed = tuning.get(head)
        document = functools.reduce(lambda inner, key: {key: inner}, reversed(keys), _read(value))
        if value is not None and value is not False and (allowed is None or not _plain(document, allowed, head)):
            yield "argument", f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
    yield from (("variable", what) for what in _untuned(playbook.env, playbook.engine))


def _untuned(env: Mapping[str, str], engine: str) -> Iterator[str]:
    """Variables that are not known to only tune ``engine``."""
    tuning = {*_TUNING.split(), *engines.engine(engine).tuning_variables()} if env else ()
    for name, value in env.items():
        what = f"{name}={value}"
        if what not in tuning and (name not in tuning or not _plain(value)):
            yield what


def _here(path: str) -> str:
    """The local ``path`` with ~ expanded and without ``..``."""
    return os.path.normpath(os.path.expanduser(path))  # noqa: PTH111 - keeps ~ of an unknown user


def _plain(value: object, keys: frozenset[str] = frozenset(), name: str = "") -> bool:
    """Whether ``value`` of ``name`` has only numbers and words, and its mappings only ``keys``."""
    if isinstance(value, dict):
        return keys >= value.keys() and all(_plain(each, keys, key) for key, each in value.items())
    if isinstance(value, list):
        return all(_plain(each, keys, name) for each in value)
    if not isinstance(value, str) or (name in {"model", "tokenizer"} and re.fullmatch(REPOSITORY, value)):
        return True
    return all(_PLAIN.fullmatch(each) for each in value.split(","))


def _read(value: object) -> object:
    """The mapping in ``value`` if it is JSON without duplicate keys, else ``value`` itself."""
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(value, object_pairs_hook=_unique) if isinstance(value, str) else value
        return document if isinstance(document, dict) else value
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("duplicate key")
    return document
