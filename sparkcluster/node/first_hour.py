"""Reads on this node what only a real machine can tell, for support bundles: outputs of commands, as they are.

It changes nothing; where it is asked to, it starts containers of the image, to the end of a short program.
"""

from __future__ import annotations

from functools import partial
from typing import Any, BinaryIO

from sparkcluster.node import docker
from sparkcluster.node.machine import Machine, Readings

_LIMIT_S = 60.0
_TEXT = 64 << 10
_OPTIONS = ("--network", "none", "--read-only", "--security-opt", "no-new-privileges")

# The limits of a container, how many HCAs libibverbs finds there, and which ptxas there are; $0 is the image's Python.
_INSIDE = """
exec 2>&1
id; ulimit -a
"$0" -c 'import ctypes; count = ctypes.c_int()
ctypes.CDLL("libibverbs.so.1").ibv_get_device_list(ctypes.byref(count)); print("HCAs:", count.value)'
for ptxas in $(find / -xdev -path "*/bin/ptxas*"); do echo "$ptxas:"; "$ptxas" --version; done
"""


def main(request: dict[str, Any], _lines: BinaryIO) -> dict[str, Any]:
    """What of this node is in no fact: the table of NVIDIA's script, and by name what is in each of ``containers``."""
    containers = {label: partial(inside, request, options) for label, options in request["containers"].items()}
    return Readings(2 * _LIMIT_S).all({"show_gids": partial(output, ["show_gids"]), **containers})


def inside(request: dict[str, Any], options: list[str]) -> str:
    """What a container of the image has, started with ``options``."""
    with docker.named("first-hour", output) as name:
        words = ["sh", "-c", _INSIDE, request["python"]]
        return output(docker.run_program(request["image_id"], words, [*name, *_OPTIONS, *options]))


def output(argv: list[str]) -> str:
    """What a program prints; Unreadable if it cannot be run."""
    return Machine().run(argv, _LIMIT_S)[1][:_TEXT]
