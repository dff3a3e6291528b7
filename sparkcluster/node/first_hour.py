"""Reads on this node what only a real machine can tell, for support bundles.

``look`` changes nothing. ``make`` and ``remove``, under the lease, import and remove the small image that is copied.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
from typing import Any, BinaryIO

from sparkcluster.node import common, docker, programs
from sparkcluster.node.machine import Machine, Unreadable

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
    """Do what ``do`` says; ``make`` and ``remove`` answer ``done``, ``refused`` or ``failed``."""
    if request["do"] == "look":
        return look(request, Machine())
    try:
        common.check_epoch(**common.lease_of(request))
        {"make": make, "remove": remove}[request["do"]](request)
    except common.Refused as error:
        return {"refused": str(error)}
    except programs.Failed as error:
        return {"failed": str(error)}
    return {"done": {}}


def look(request: Request, machine: Machine) -> dict[str, Any]:
    """What of this node is in no fact; of each part that could not be read, why."""
    containers = {label: inside(machine, request, label) for label in request["containers"]}
    return {
        "show_gids": show_gids(machine),
        "containers": containers,
    }


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
        line = next((line for line in reversed(output.splitlines()) if line.startswith(_MARK)), None)
        if line is None:
            return {"unread": "exit %d: %s" % (code, output[-300:])}
        return dict(json.loads(line[len(_MARK) :]))
    except (Unreadable, ValueError) as error:
        return {"unread": str(error)}


def make(request: Request) -> None:
    """Import an image of one file of random bytes as ``reference``."""
    content = os.urandom(request["size_bytes"])
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            entry = tarfile.TarInfo("random")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        file.seek(0)
        programs.run(docker.import_image(request["reference"]), stdin=file)


def remove(request: Request) -> None:
    """Remove the image ``reference``, if it exists."""
    try:
        programs.run(docker.remove_image(request["reference"]))
    except programs.Failed as error:
        if not docker.is_missing(str(error)):
            raise
