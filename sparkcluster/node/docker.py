"""Docker's command lines on this node, and what its messages mean.

The command line of a rank comes from the controller (``plan/docker_run.py``); the engine's socket is in ``machine``,
what it reports becomes facts in ``container_facts`` and ``ranks``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_STARTS_WITH = ("Entrypoint", "Cmd", "WorkingDir", "User", "Healthcheck", "Volumes")
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit codes of ``docker run`` and ``docker exec`` where the program in the container cannot be started."""
BESIDE = ("--network", "none", "--memory", "4g")
"""Options of a container beside a release that fills a Spark: with more memory it could take the node down."""
LOOK_S = 60.0  # of a container that looks at its image; the first start of a big one reads it from a cold disk


def run_once(image: str, python: str, source: str, options: Sequence[str]) -> list[str]:
    """Command that runs a Python program in a container of ``image``, which is removed after it and never pulled."""
    return run_program(image, [python, "-c", source], options)


def run_program(image: str, words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Command that runs a program of the image in place of its entrypoint; else as ``run_once``."""
    return ["docker", "run", "--rm", "--pull", "never", *options, "--entrypoint", words[0], image, *words[1:]]


@contextlib.contextmanager
def named(purpose: str, run: Callable[[list[str]], Any]) -> Iterator[list[str]]:
    """Options that name a container of ``run_once``; where the block raises, ``run`` removes it.

    Ending Docker's client leaves its container.
    """
    name = "sparkcluster-%s-%d-%s" % (purpose, os.getpid(), os.urandom(4).hex())
    try:
        yield ["--name", name]
    except BaseException:
        with contextlib.suppress(Exception):
            run(remove(name))
        raise


def as_root(capabilities: Sequence[str] = (), folders: Sequence[str] = ()) -> list[str]:
    """Options of a container whose program is root, has ``capabilities`` alone and sees ``folders`` of the node alone.

    Never DAC_READ_SEARCH: it permits open_by_handle_at, which reads any file of the node (CVE-2015-3627). Folders that
    are missing are made.
    """
    options = ["--network", "none", "--user", "0:0", "--read-only", "--security-opt", "no-new-privileges"]
    options += ["--log-driver", "none", "--cap-drop", "ALL"]
    for capability in capabilities:
        options += ["--cap-add", capability]
    for folder in folders:
        options += ["--volume", "%s:%s" % (folder, folder)]  # --mount makes none
    return options


def execute(name: str, *words: str) -> list[str]:
    """Command that runs a program in the container ``name``."""
    return ["docker", "exec", name, *words]


def stop(names: Sequence[str], grace_s: int) -> list[str]:
    """Command that ends containers at once, by SIGTERM, and by SIGKILL after ``grace_s``."""
    return ["docker", "stop", "--time", str(grace_s), *names]


def remove(name: str) -> list[str]:
    """Command that removes a container with its anonymous volumes, whether or not it runs."""
    return ["docker", "rm", "--force", "--volumes", name]


def inspect_image(reference: str) -> list[str]:
    """Command that prints the description of an image."""
    return ["docker", "image", "inspect", reference]


def list_images(repository: str) -> list[str]:
    """Command that prints name, tag and ID of each image of a ``repository``, as ``NAME:TAG ID``."""
    return ["docker", "image", "ls", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}", repository]


def save(image_id: str, platform: str | None = None) -> list[str]:
    """Command that writes an image, or of one for several platforms that for ``platform``, to its output."""
    return ["docker", "save", *(["--platform", platform] if platform else []), image_id]


def in_containerd(info: dict[str, Any]) -> bool:
    """Whether containerd stores the images, by the engine's ``/info``."""
    return any("io.containerd.snapshotter.v1" in str(pair) for pair in info.get("DriverStatus") or [])


def load() -> list[str]:
    """Command that loads an image from its input, and unpacks it after the last layer."""
    return ["docker", "load"]


def build(reference: str, base: str, dockerfile: str, folder: str) -> list[str]:
    """Command that makes an image of a ``folder``, on ``base``, which Docker pulls where it is missing."""
    return ["docker", "build", "--tag", reference, "--build-arg", "BASE=" + base, "--file", dockerfile, folder]


def remove_image(*references: str) -> list[str]:
    """Command that removes images, or some of their names."""
    return ["docker", "image", "rm", *references]


def tag(image_id: str, reference: str) -> list[str]:
    """Command that names an image."""
    return ["docker", "tag", image_id, reference]


def config_sum(config: dict[str, Any]) -> str:
    """Hash of how a container of an image starts; includes the values of variables, which stay on the node."""
    parts = [sorted(config.get("Env") or [])] + [config.get(key) or "" for key in _STARTS_WITH]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def is_whole(image: dict[str, Any]) -> bool:
    """Whether an image is more than a name, by what Docker prints of it.

    containerd's store downloads no layer whose content another image there has, compressed otherwise; Docker 28 lists
    such an image without layers and configuration, and cannot run it (containerd#8973).
    """
    return bool(image.get("RootFS"))


def is_missing(message: str) -> bool:
    """Whether a command failed because there is no such container or image."""
    return "no such" in message.lower()


def disk_is_full(message: str) -> bool:
    """Whether a command failed for want of disk space."""
    return "no space left" in message.lower()
