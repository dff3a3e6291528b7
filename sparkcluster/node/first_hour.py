"""Reads on this node what only a real machine can tell, for support bundles.

It changes nothing; where it is asked to, it starts containers of the image, to the end of a short program.
"""

from __future__ import annotations

from typing import Any, BinaryIO

from sparkcluster.node import docker
from sparkcluster.node.machine import Machine, Unreadable, marked

Request = dict[str, Any]

_LIMIT_S = 60.0
_TEXT = 64 << 10
_MARK = "sparkcluster-first-hour "

# Runs in the image's Python: the limits of a container, what libibverbs finds there, which ptxas there are.
INSIDE = """
import ctypes, glob, importlib.util, json, os, resource, subprocess
found = {"uid": os.getuid(), "limits": {}, "ptxas": {}}
for name in ("MEMLOCK", "NOFILE", "NPROC", "STACK"):
    found["limits"][name.lower()] = list(resource.getrlimit(getattr(resource, "RLIMIT_" + name)))
try:
    verbs, number = ctypes.CDLL("libibverbs.so.1"), ctypes.c_int()
    verbs.ibv_get_device_list.restype = ctypes.c_void_p
    found["verbs"] = number.value if verbs.ibv_get_device_list(ctypes.byref(number)) else "no list of devices"
except Exception as error:
    found["verbs"] = str(error)
try:
    triton = (importlib.util.find_spec("triton").submodule_search_locations or [""])[0]
except Exception:
    triton = ""
paths = glob.glob(triton + "/backends/nvidia/bin/ptxas*") if triton else []
for path in ["/usr/local/cuda/bin/ptxas"] + sorted(paths):
    try:
        done = subprocess.run([path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20)
        found["ptxas"][path] = " ".join(done.stdout.decode(errors="replace").split()[-8:])
    except Exception as error:
        found["ptxas"][path] = str(error)
print("%s" + json.dumps(found))
""" % (_MARK,)


def main(request: Request, _lines: BinaryIO) -> dict[str, Any]:
    """What of this node is in no fact; of each part that could not be read, why."""
    machine = Machine()
    containers = {label: inside(machine, request, label) for label in request["containers"]}
    return {"show_gids": show_gids(machine), "containers": containers}


def show_gids(machine: Machine) -> str:
    """The table of NVIDIA's script, as it prints it."""
    try:
        code, output = machine.run(["show_gids"], 20)
    except Unreadable as error:
        return str(error)
    return output[:_TEXT] if code == 0 else "exit %d: %s" % (code, output[:_TEXT])


def inside(machine: Machine, request: Request, label: str) -> dict[str, Any]:
    """What a container of the image has, started with the options of ``label``; or ``{"unread": why}``."""
    options = ["--network", "none", "--read-only", "--security-opt", "no-new-privileges", *request["containers"][label]]
    try:
        with docker.named("first-hour", machine.run) as name:
            argv = docker.run_once(request["image_id"], request["python"], INSIDE, [*name, *options])
            code, output = machine.run(argv, _LIMIT_S)
        return marked(output, _MARK) or {"unread": "exit %d: %s" % (code, output[-300:])}
    except Unreadable as error:
        return {"unread": str(error)}
