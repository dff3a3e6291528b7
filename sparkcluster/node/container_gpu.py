"""Counts the GPUs that a container of an image has.

nvidia-smi makes no CUDA context: beside a release that fills a Spark, one more could take the node down with it.
"""

from __future__ import annotations

import re
from typing import Any

from sparkcluster.node import docker
from sparkcluster.node.machine import Machine, Unreadable, because

# Without `utility` the toolkit brings no nvidia-smi (NVIDIA Container Toolkit, "Driver Capabilities").
_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
_TOOLKIT = "nvidia-container-cli: .*"


def main(request: dict[str, Any], _lines: Any = None, machine: Machine | None = None) -> dict[str, Any]:
    """``{"gpus": N}``, or ``{"unread": why}``; null where the container has no nvidia-smi, which tells nothing.

    Args:
        request: image_id, of this node's Docker engine.
        machine: the node.
    """
    machine = machine or Machine()
    try:
        with docker.named("gpu", machine.run) as name:
            options = [*name, *docker.BESIDE, "--gpus", "all", "--env", _CAPABILITIES]
            argv = docker.run_program(request["image_id"], ["nvidia-smi", "-L"], options)
            code, output = machine.run(argv, docker.LOOK_S)
    except Unreadable as error:
        return {"unread": because(error)}
    said = re.search(_TOOLKIT, output)
    if said is None and code in (docker.NOT_EXECUTABLE, docker.NOT_FOUND):
        return {"gpus": None}
    if code:
        # Docker's last line points to its help.
        said = said or re.search(r".*\S.*", output)
        return {"unread": said[0].strip() if said else "nvidia-smi exit %d" % code}
    return {"gpus": sum(line.startswith("GPU ") for line in output.splitlines())}
