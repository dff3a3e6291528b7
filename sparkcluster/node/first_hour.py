"""Collects command outputs that only a real machine can give, for support bundles.

It changes nothing. If requested, it starts containers of the image, which run a short program and exit.
"""

from __future__ import annotations

from functools import partial
from typing import Any, BinaryIO

from sparkcluster.node import docker
from sparkcluster.node.machine import Machine, Readings

_LIMIT_S = 60.0
_TEXT = 64 << 10
_OPTIONS = ("--network", "none", "--read-only", "--security-opt", "no-new-privileges")

# The limits of a container, the number of HCAs that libibverbs finds, and all ptxas; $0 is the image's Python.
_INSIDE = """
exec 2>&1
id; ulimit -a
"$0" -c 'import ctypes; count = ctypes.c_int()
ctypes.CDLL("libibverbs.so.1").ibv_get_device_list(ctypes.byref(count)); print("HCAs:", count.value)'
for ptxas in $(find / -xdev -path "*/bin/ptxas*"); do echo "$ptxas:"; "$ptxas" --version; done
"""


def main(request: dict[str, Any], _lines: BinaryIO) -> dict[str, Any]:
    """Readings that are not in the facts: the table of NVIDIA's show_gids, and the output of each of ``containers``."""
    containers = {label: partial(inside, request, options) for label, options in request["containers"].items()}
    return Readings(2 * _LIMIT_S).all({"show_gids": partial(output, ["show_gids"]), **containers})


def inside(request: dict[str, Any], options: list[str]) -> str:
    """The output of ``_INSIDE`` in a container of the image, started with ``options``."""
    with docker.named("first-hour", output) as name:
        words = ["sh", "-c", _INSIDE, request["python"]]
        return output(docker.run_program(request["image_id"], words, [*name, *_OPTIONS, *options]))


def output(argv: list[str]) -> str:
    """The output of a program; Unreadable if it cannot be run."""
    return Machine().run(argv, _LIMIT_S)[1][:_TEXT]
