"""The ``docker run`` line of one rank."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sparkcluster.node.shared import BIND_FILE, ENTRY_FILE, LAUNCHER_FILE
from sparkcluster.spec.playbook import Container, Ulimit, is_root

INSIDE = "/sparkcluster"
"""Directory of sparkcluster's files in a container."""
ENTRY = f"{INSIDE}/{ENTRY_FILE}"
LAUNCHER = f"{INSIDE}/{LAUNCHER_FILE}"
LIBRARY = f"{INSIDE}/{BIND_FILE}"
RAY_PATH = f"{INSIDE}/ray"
ROOT_HOME = "/root"
HF_HOME = f"{ROOT_HOME}/.cache/huggingface"
HOME = f"{INSIDE}/home"
"""Home of a user other than root."""
NAME_LIMIT = 120
# Without a limit, request logs would fill the disk in weeks.
LOGS = ("--log-driver", "json-file", "--log-opt", "max-size=64m", "--log-opt", "max-file=3")
_ULIMITS: Mapping[Ulimit, int] = {"memlock": -1, "stack": 67_108_864, "nofile": 1_048_576}


def limits(own: Mapping[Ulimit, int] | None = None) -> list[str]:
    """Ulimit options of a rank: defaults, overridden by ``own``."""
    every = {**_ULIMITS, **(own or {})}
    return [word for name, value in every.items() for word in ("--ulimit", f"{name}={value}")]


def valid_name(written: str) -> str:
    """``written`` as a valid name of a Docker container."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", written)
    if name == written and len(name) <= NAME_LIMIT:
        return name
    # Hosts that differ only in replaced or truncated characters must get different names.
    mark = hashlib.sha256(written.encode()).hexdigest()[:8]
    return f"{name[: NAME_LIMIT - 9]}-{mark}"


def path_in_container(path: str, user: str) -> str:
    """Path in the container of ``user`` for root's ``path``; root's home is not accessible to other users."""
    inside = not is_root(user) and path.startswith(f"{ROOT_HOME}/")
    return HOME + path.removeprefix(ROOT_HOME) if inside else path


def writable(user: str) -> list[str]:
    """Options for in-memory directories that a ``user`` other than root writes to.

    Docker creates parents of mounts as root, so directories between home and caches are included. ``--tmpfs`` and not
    ``--mount type=tmpfs``, which does not allow executing files that are compiled there.
    """
    if is_root(user):
        return []
    paths = (INSIDE, HOME, f"{HOME}/.cache", path_in_container(HF_HOME, user))
    return [word for path in paths for word in ("--tmpfs", f"{path}:exec,mode=1777")]


def bind(source: str, target: str, *, read_only: bool = False) -> list[str]:
    """Bind mount of a path of the node.

    ``--mount`` instead of ``--volume``: it fails if the source is missing (``--volume`` would create a directory owned
    by root), and supports colons. Its value is a line of CSV.
    """
    line = io.StringIO()
    fields = ["type=bind", f"source={source}", f"target={target}", *(["readonly"] if read_only else [])]
    csv.writer(line, lineterminator="").writerow(fields)
    return ["--mount", line.getvalue()]


def mounts(argv: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Source, target and ``, read-only`` of every bind mount of a docker command."""
    for flag, value in itertools.pairwise(argv):
        if flag == "--mount":
            try:
                fields = dict(part.partition("=")[::2] for part in next(csv.reader([value]), []))
            except csv.Error:  # a node's record may be malformed
                continue
            source, target = fields.get("source"), fields.get("target")
            if fields.get("type") == "bind" and source and target:
                yield source, target, ", read-only" if "readonly" in fields else ""


def run(
    *,
    name: str,
    image: str,
    keeps_entrypoint: bool,
    python: str,
    env: Mapping[str, str],
    env_file: str | None,
    labels: Mapping[str, str],
    mounts: Sequence[Sequence[str]],
    infiniband: bool,
    container: Container,
) -> list[str]:
    """Command that starts one rank.

    The rank uses the node's network and IPC, all GPUs, unlimited pinned memory for RDMA, and a high limit of open
    files, since containerd 2.1.5 sets a soft limit of 1024 (moby#51485). It gets no ``--privileged``, no raw sockets
    (with which it could read and forge packets of the node), no other device files, and no restart policy, since a
    single restarted rank finds no group. The image is started by local ID and never pulled. NGC's entrypoint is kept
    and gets the launcher as its command; other entrypoints are replaced.

    ``image`` is a local ID; ``python`` the interpreter in the image for the launcher; ``env`` has no secrets, which are
    in ``env_file`` on the node; ``mounts`` are from ``bind``; ``container`` has the playbook's options.
    """
    argv = ["docker", "run", "--detach", "--name", name]
    argv += ["--network", "host", "--ipc", "host", "--gpus", "all"]
    if infiniband:
        argv += ["--device", "/dev/infiniband"]
    for device in container.devices:
        argv += ["--device", device]
    argv += limits(container.ulimits)
    argv += ["--init", "--pull", "never", *([] if container.user is None else ["--user", container.user])]
    argv += [*LOGS, "--security-opt", "no-new-privileges"]
    for capability in sorted({"MKNOD", "NET_RAW"} - set(container.cap_add)):
        argv += ["--cap-drop", capability]
    for capability in container.cap_add:
        argv += ["--cap-add", capability]
    for label, value in sorted(labels.items()):
        argv += ["--label", f"{label}={value}"]
    for variable, value in sorted(env.items()):
        argv += ["--env", f"{variable}={value}"]
    if env_file is not None:
        argv += ["--env-file", env_file]
    for mount in mounts:
        argv += mount
    command = [python, ENTRY, LAUNCHER]
    if keeps_entrypoint:
        return [*argv, image, *command]
    return [*argv, "--entrypoint", command[0], image, *command[1:]]
