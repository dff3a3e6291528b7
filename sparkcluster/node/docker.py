"""Docker on this node: its command lines, its socket, and what its messages mean.

All programs here use containers and images by this module. The command line of a rank comes from the controller
(``plan/docker_run.py``); what Docker reports of containers and images becomes facts in
``container_facts``. Python 3.8, standard library only.
"""

from __future__ import annotations

import os
import socket
from typing import Any, List, Sequence, Tuple

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit codes of ``docker run`` and ``docker exec`` where the program in the container cannot be started."""


def socket_path() -> str:
    """Path of the Docker engine's socket.

    Raises:
        ValueError: DOCKER_HOST names something else than a socket on this machine.
    """
    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if not host.startswith("unix://"):
        raise ValueError("DOCKER_HOST is %s, and only unix:// can be read" % host)
    return host[len("unix://") :]


def get(path: str, timeout_s: float | None = 5) -> Tuple[Any, Any]:
    """Connection and response of ``GET path``; the caller closes the connection.

    The import of an HTTP client takes 40 ms, which the probe does without.
    """
    import http.client

    connection = http.client.HTTPConnection("docker", timeout=timeout_s)
    try:
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(timeout_s)
        connection.sock.connect(socket_path())
        connection.request("GET", path)
        return connection, connection.getresponse()
    except BaseException:
        connection.close()
        raise


def read(path: str) -> Tuple[int, bytes]:
    """Status and body of ``GET path``."""
    connection, response = get(path)
    try:
        return response.status, response.read()
    finally:
        connection.close()


def run_once(image: str, python: str, source: str, options: Sequence[str]) -> List[str]:
    """Command that runs a Python program in a container of ``image``, which is removed after it and never pulled."""
    return ["docker", "run", "--rm", "--pull", "never", *options, "--entrypoint", python, image, "-c", source]


def execute(name: str, *words: str) -> List[str]:
    """Command that runs a program in the container ``name``."""
    return ["docker", "exec", name, *words]


def inspect(name: str) -> List[str]:
    """Command that prints what is known of a container."""
    return ["docker", "inspect", "--type", "container", name]


def stop(name: str, grace_s: int) -> List[str]:
    """Command that ends a container by SIGTERM, and by SIGKILL after ``grace_s``."""
    return ["docker", "stop", "--time", str(grace_s), name]


def remove(name: str) -> List[str]:
    """Command that removes a container with its anonymous volumes, whether or not it runs."""
    return ["docker", "rm", "--force", "--volumes", name]


def inspect_image(reference: str) -> List[str]:
    """Command that prints what is known of an image."""
    return ["docker", "image", "inspect", reference]


def pull(reference: str) -> List[str]:
    """Command that pulls an image from its registry."""
    return ["docker", "pull", reference]


def save(image_id: str) -> List[str]:
    """Command that writes an image to its output; all layers go to the engine's disk first."""
    return ["docker", "save", image_id]


def load() -> List[str]:
    """Command that loads an image from its input, and unpacks it after the last layer."""
    return ["docker", "load"]


def tag(image_id: str, reference: str) -> List[str]:
    """Command that names an image."""
    return ["docker", "tag", image_id, reference]


def is_missing(message: str) -> bool:
    """Whether a command failed because there is no such container or image."""
    return "no such" in message.lower()


def disk_is_full(message: str) -> bool:
    """Whether a command failed for want of disk space."""
    return "no space left" in message.lower()
