"""What no single key of a playbook can tell: arguments and variables set elsewhere, secrets, mounts."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from sparkcluster.errors import Problem
from sparkcluster.spec.document import Document, KeyPath, shown
from sparkcluster.spec.messages import may_show
from sparkcluster.spec.playbook import Playbook

# Engine arguments that follow from other keys; a test holds that the plan's own are among them.
ELSEWHERE = {
    "model": "model.id or model.path",
    "revision": "model.revision",
    "served-model-name": "served_name",
    "tensor-parallel-size": "tensor_parallel",
    "pipeline-parallel-size": "pipeline_parallel",
    "distributed-executor-backend": "executor",
    "host": "api.host in the inventory",
    "port": "api.port in the inventory",
    "uds": "api.host and api.port in the inventory",
    "api-key": "api.key in the inventory, which keeps it out of every command line",
    "hf-token": "secrets: [HF_TOKEN], which keeps it out of every command line",
    "nnodes": "groups in the inventory",
    "node-rank": "groups in the inventory",
    "master-addr": "groups in the inventory",
    "master-port": "groups in the inventory",
    "headless": "groups in the inventory",
    "config": "the arguments themselves here",
}
_SHORT = {
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "n": "groups in the inventory",
    "r": "groups in the inventory",
    "dp": "data-parallel-size",
    "q": "quantization",
    "O": "optimization-level",
    "cc": "compilation-config",
    "ac": "attention-config",
    "sc": "speculative-config",
}
_ARGUMENT = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*(\.[A-Za-z0-9_+-]+)*")

# One value cannot be right for every node, so none is taken from a playbook.
PER_NODE = {
    "GLOO_SOCKET_IFNAME",
    "MN_IF_NAME",
    "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_ADDR_RANGE",
    "NCCL_IB_DISABLE",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "OMPI_MCA_btl_tcp_if_include",
    "OMPI_MCA_oob_tcp_if_include",
    "SPARKCLUSTER_BIND_ADDRESS",
    "TP_SOCKET_IFNAME",
    "UCX_NET_DEVICES",
    "VLLM_HOST_IP",
}
_PLANNED = {
    "HF_HOME": "hf_home in the inventory",
    "HF_HUB_CACHE": "hf_home in the inventory",
    "LOCAL_RANK": "nothing: ranks follow from groups in the inventory",
    "MASTER_ADDR": "nothing: it follows from groups in the inventory",
    "MASTER_PORT": "nothing: it follows from groups in the inventory",
    "RANK": "nothing: ranks follow from groups in the inventory",
    "RAY_ADDRESS": "nothing: Ray's address follows from groups in the inventory",
    "RAY_AUTH_MODE": "nothing: Ray's token is made for each release",
    "RAY_AUTH_TOKEN": "nothing: Ray's token is made for each release",
    "VLLM_API_KEY": "api.key in the inventory",
    "WORLD_SIZE": "nothing: ranks follow from groups in the inventory",
}
_SECRET = re.compile(
    r"(^|_)(TOKEN|API_?KEY|ACCESS_KEY|SECRET_KEY|PRIVATE_KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$",
    re.IGNORECASE,
)

# Whoever may write there owns the node, and the container needs none of them.
_SYSTEM = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var/run",
    "/var/lib/docker",
)


def check(written: Playbook, document: Document) -> list[Problem]:
    """Problems of a playbook whose keys are each in order."""
    checks = (_model, _arguments, _environment, _secrets, _mounts, _caches, _command, _verify)
    return [problem for one in checks for problem in one(written, document)]


def secret(name: str) -> bool:
    """Whether a variable of that name holds a secret, by what such are called."""
    return bool(_SECRET.search(name))


def system_directory(path: str) -> bool:
    """Whether ``path``, normalised, is one of the system's own directories or lies within."""
    return any(path == one or path.startswith(f"{one}/") for one in _SYSTEM)


def _model(written: Playbook, document: Document) -> Iterator[Problem]:
    if written.model.path is not None and "revision" in written.model.model_fields_set:
        message = "belongs to a Hugging Face repository; a directory has no revisions"
        yield document.problem(("model", "revision"), message, "leave it out", key=True)
    for key in ("id", "revision"):
        value = getattr(written.model, key)
        if value and ".." in value:
            yield document.problem(("model", key), "may not hold '..'")


def _arguments(written: Playbook, document: Document) -> Iterator[Problem]:
    for name, value in written.args.items():
        path = ("args", name)
        bare = name.lstrip("-")
        plain = bare if bare in _SHORT else bare.replace("_", "-").lower()
        owner = ELSEWHERE.get(plain) or ELSEWHERE.get(plain.removeprefix("no-"))
        if bare in _SHORT:
            message = f"{shown(name)[1:-1]} is a short form of an argument"
            yield document.problem(path, message, f"write {_SHORT[bare]}", key=True)
        elif owner:
            yield document.problem(path, "sparkcluster sets this argument itself", f"write {owner}", key=True)
        elif _SECRET.search(plain.replace("-", "_")) and isinstance(value, str):
            message = "a secret has no place in a command line, which every user of the node can read"
            yield document.problem(path, message, "list its variable under secrets", key=True)
        elif not _ARGUMENT.fullmatch(name):
            head, dot, tail = bare.partition(".")
            near = head.replace("_", "-").lower() + dot + tail
            hint = f"write {near}" if _ARGUMENT.fullmatch(near) else None
            message = "must be vLLM's own name of the argument, in lower case with dashes, without dashes in front"
            yield document.problem(path, message, hint, key=True)


def _environment(written: Playbook, document: Document) -> Iterator[Problem]:
    for name in written.env:
        path = ("env", name)
        planned = _planned(name)
        if planned:
            yield document.problem(path, *planned, key=True)
        elif _SECRET.search(name):
            message = "looks like a secret, and env is shown in plans and logs"
            hint = f"write secrets: [{name}], and set it in the environment you start sparkcluster in"
            yield document.problem(path, message, hint, key=True)


def _planned(name: str) -> tuple[str, str] | None:
    if name in PER_NODE:
        return (
            "differs from node to node, so sparkcluster sets it for each",
            "leave it out, or name interfaces in the inventory",
        )
    if name in _PLANNED:
        return "sparkcluster sets this variable itself", f"write {_PLANNED[name]}".replace(
            "write nothing:", "leave it out:"
        )
    return None


def _secrets(written: Playbook, document: Document) -> Iterator[Problem]:
    for index, name in enumerate(written.secrets):
        path = ("secrets", index)
        planned = _planned(name)
        if planned:
            yield document.problem(path, f"{name}: {planned[0]}", planned[1])
        elif name in written.env:
            yield document.problem(path, f"{name} stands in env too", "keep it here alone")
        elif name in written.secrets[:index]:
            yield document.problem(path, f"{name} stands twice")


def _mounts(written: Playbook, document: Document) -> Iterator[Problem]:
    targets: dict[str, KeyPath] = {}
    for index, mount in enumerate(written.mounts):
        path = ("mounts", index)
        source = normal(mount.source)
        hint = "mount a directory of your own, as ~/data"
        if source == "/" or system_directory(source) or source.endswith("/docker.sock"):
            yield document.problem((*path, "source"), f"{source} would give the container power over the node", hint)
        elif source == "~" or source.startswith("~/.ssh"):
            yield document.problem((*path, "source"), f"{source} would give the container your keys", hint)
        yield from _target(mount.target, (*path, "target"), targets, document)
    for index, cache in enumerate(written.caches):
        yield from _target(cache.target, ("caches", index, "target"), targets, document)


def _target(written: str, path: KeyPath, taken: dict[str, KeyPath], document: Document) -> Iterator[Problem]:
    target = normal(written)
    if target == "/" or any(target == one or target.startswith(f"{one}/") for one in ("/dev", "/proc", "/sys")):
        yield document.problem(path, f"nothing may be mounted over {target} of the container")
    elif target in taken:
        yield document.problem(path, f"something else is mounted at {target} already", "give each its own target")
    taken[target] = path


def normal(path: str) -> str:
    """``path`` without detours; a path that climbs out of ~ is taken for what it may reach."""
    normal = posixpath.normpath(path)
    if not normal.startswith(("/", "~")):
        return "/"
    return f"/{normal.lstrip('/')}" if normal.startswith("/") else normal


def _caches(written: Playbook, document: Document) -> Iterator[Problem]:
    names: set[str] = set()
    for index, cache in enumerate(written.caches):
        if cache.name in names:
            yield document.problem(("caches", index, "name"), f"two caches are called {cache.name}", "rename one")
        names.add(cache.name)


def _command(written: Playbook, document: Document) -> Iterator[Problem]:
    if written.command is None:
        return
    if written.args:
        message = "args have no place beside command, which is the whole command"
        yield document.problem(("args",), message, "keep one of the two", key=True)
    for index, word in enumerate(written.command):
        if not may_show((), word):
            message = "a secret has no place in a command line, which every user of the node can read"
            yield document.problem(("command", index), message, "list its variable under secrets")


def _verify(written: Playbook, document: Document) -> Iterator[Problem]:
    if "reasoning-parser" in written.args and written.verify.max_tokens < 512:
        message = f"is {written.verify.max_tokens}, but a reasoning model needs 512 to reach its answer"
        yield document.problem(("verify", "max_tokens"), message, "write max_tokens: 512 or more")
