"""Docker command lines on this node, and the interpretation of Docker's messages.

The command line of a rank comes from the controller (``plan/docker_run.py``). ``machine`` uses Docker's socket;
``container_facts`` and ``ranks`` turn its answers into facts.
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
"""Exit codes of ``docker run`` and ``docker exec`` if the program in the container cannot be started."""
BESIDE = ("--network", "none", "--memory", "4g")
"""Options of a container next to a model that fills the memory: with more memory it could bring the node down."""
LOOK_S = 60.0  # for a container that inspects its image; the first start reads a large image from disk


def run_once(image: str, python: str, source: str, options: Sequence[str]) -> list[str]:
    """Command that runs a Python program in a temporary container of ``image``, which is never pulled."""
    return run_program(image, [python, "-c", source], options)


def run_program(image: str, words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Command that runs a program of the image instead of its entrypoint; otherwise like ``run_once``."""
    return ["docker", "run", "--rm", "--pull", "never", *options, "--entrypoint", words[0], image, *words[1:]]


@contextlib.contextmanager
def named(purpose: str, run: Callable[[list[str]], Any]) -> Iterator[list[str]]:
    """Options that name a container of ``run_once``; if the block raises, ``run`` removes the container.

    Ending the Docker client does not end its container.
    """
    name = "sparkcluster-%s-%d-%s" % (purpose, os.getpid(), os.urandom(4).hex())
    try:
        yield ["--name", name]
    except BaseException:
        with contextlib.suppress(Exception):
            run(remove(name))
        raise


def as_root(capabilities: Sequence[str] = (), folders: Sequence[str] = ()) -> list[str]:
    """Options for a container that runs as root with only ``capabilities``, and sees only ``folders`` of the node.

    Never DAC_READ_SEARCH: it permits open_by_handle_at, which reads any file of the node (CVE-2015-3627). Missing
    folders are created.
    """
    options = ["--network", "none", "--user", "0:0", "--read-only", "--security-opt", "no-new-privileges"]
    options += ["--log-driver", "none", "--cap-drop", "ALL"]
    for capability in capabilities:
        options += ["--cap-add", capability]
    for folder in folders:
        options += ["--volume", "%s:%s" % (folder, folder)]  # --mount would not create it
    return options


def execute(name: str, *words: str) -> list[str]:
    """Command that runs a program in the container ``name``."""
    return ["docker", "exec", name, *words]


def stop(names: Sequence[str], grace_s: int) -> list[str]:
    """Command that stops containers at the same time, by SIGTERM, and by SIGKILL after ``grace_s``."""
    return ["docker", "stop", "--time", str(grace_s), *names]


def remove(name: str) -> list[str]:
    """Command that removes a container and its anonymous volumes, even if it is running."""
    return ["docker", "rm", "--force", "--volumes", name]


def inspect_image(reference: str) -> list[str]:
    """Command that prints the description of an image."""
    return ["docker", "image", "inspect", reference]


def list_images(repository: str) -> list[str]:
    """Command that prints each image of a ``repository`` as ``NAME:TAG ID``."""
    return ["docker", "image", "ls", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}", repository]


def save(image_id: str, platform: str | None = None) -> list[str]:
    """Command that writes an image to its output; of a multi-platform image the one for ``platform``."""
    return ["docker", "save", *(["--platform", platform] if platform else []), image_id]


def in_containerd(info: dict[str, Any]) -> bool:
    """Whether containerd stores the images, from Docker's ``/info``."""
    return any("io.containerd.snapshotter.v1" in str(pair) for pair in info.get("DriverStatus") or [])


def load() -> list[str]:
    """Command that loads an image from its input; it unpacks the image after the last layer."""
    return ["docker", "load"]


def build(reference: str, base: str, dockerfile: str, folder: str) -> list[str]:
    """Command that builds an image from a ``folder``, on ``base``, which Docker pulls if it is missing."""
    return ["docker", "build", "--tag", reference, "--build-arg", "BASE=" + base, "--file", dockerfile, folder]


def remove_image(*references: str) -> list[str]:
    """Command that removes images, or some of their names."""
    return ["docker", "image", "rm", *references]


def tag(image_id: str, reference: str) -> list[str]:
    """Command that names an image."""
    return ["docker", "tag", image_id, reference]


def config_sum(config: dict[str, Any]) -> str:
    """Hash of a container's start settings in an image; it covers the values of variables, which stay on the node."""
    parts = [sorted(config.get("Env") or [])] + [config.get(key) or "" for key in _STARTS_WITH]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def is_whole(image: dict[str, Any]) -> bool:
    """Whether an image, by its ``docker image inspect``, is complete and not just a name.

    containerd's store does not download a layer if another image has the same content in another compression. Docker 28
    then lists the image without layers and configuration, and cannot run it (containerd#8973).
    """
    return bool(image.get("RootFS"))


def is_missing(message: str) -> bool:
    """Whether a command failed because the container or image does not exist."""
    return "no such" in message.lower()


def disk_is_full(message: str) -> bool:
    """Whether a command failed because the disk is full."""
    return "no space left" in message.lower()
