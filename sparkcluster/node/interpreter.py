"""Reads what an engine's Python has installed, without importing the engine (which takes many seconds)."""

from __future__ import annotations

from typing import Any

from sparkcluster.node import engine
from sparkcluster.node.machine import Unreadable, marked
from sparkcluster.node.shared import COMPILERS, PACKAGES

# Runs in the interpreter, on the node or inside the image; the engine's part of the program sets ``ENGINE``.
_READERS = """
import ast, ctypes, glob, importlib.util, json, os, platform, re, shutil, sys
from importlib.metadata import version
def installed(*names):
    for name in names:
        try:
            return version(name)
        except Exception:
            pass
    return None
def folder(name):
    spec = importlib.util.find_spec(name)
    return next(iter((spec and spec.submodule_search_locations) or ()), None)
libc = os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")
tag = "manylinux_%s_%s_%s" % (*libc[:2], platform.machine())
def text(*parts):
    with open(os.path.join(*parts), encoding="utf-8", errors="replace") as file:
        return file.read()
# NCCL libraries that the engine loads instead of torch's, if its variables name any.
NCCL_PATHS = []
def loads(path):
    try:
        return ctypes.CDLL(path)
    except OSError:
        return None
def nccl_loaded():
    preloaded = re.split("[ :]+", os.environ.get("LD_PRELOAD", ""))
    beside = os.path.join(os.path.dirname(folder("torch") or ""), "nvidia", "nccl", "lib", "libnccl.so.2")
    named = [*NCCL_PATHS, *(path for path in preloaded if "nccl" in os.path.basename(path))]
    library = next(filter(None, map(loads, filter(None, [*named, beside, "libnccl.so.2"]))), None)
    number = ctypes.c_int()
    if library is None or library.ncclGetVersion(ctypes.byref(number)):
        return None
    # nccl.h, NCCL_VERSION: two digits for the minor number since 2.9
    parts = (10000, 100) if number.value >= 10000 else (1000, 100)
    major, rest = divmod(number.value, parts[0])
    return "%d.%d.%d" % (major, *divmod(rest, parts[1]))
def verbs():
    # libibverbs loads the providers in its configuration (rdma-core, Documentation/libibverbs.md)
    if loads("libibverbs.so.1") is None:
        return "no libibverbs"
    libraries = [found for place in ("lib", "lib64", "lib/*") for found in glob.glob(
        "/usr/%s/libibverbs/libmlx5-rdmav*.so" % place)]
    named = any(map(os.path.exists, glob.glob("/etc/libibverbs.d/*mlx5*.driver")))
    return "yes" if named and any(map(loads, libraries)) else "no mlx5"
"""
_ANSWER = """
print("sparkcluster-engine " + json.dumps({
    "python": sys.executable,
    "python_version": platform.python_version(),
    "platform": tag,
    "ray_version": installed("ray"),
    "torch_version": installed("torch"),
    "compiler": any(map(shutil.which, %r)),
    "lacks": [name for name in %r if folder(name) is None],
    "nccl_loaded": nccl_loaded(),
    "verbs": verbs(),
    **ENGINE
}))
""" % (COMPILERS, PACKAGES)


SNIPPET = _READERS + engine.INSPECTION + _ANSWER
"""The program for the interpreter, with the engine's part."""


def parse(output: str) -> dict[str, Any]:
    """The document printed by SNIPPET; an image's entrypoint may print something before it.

    Raises:
        Unreadable: there is none.
    """
    found = marked(output, "sparkcluster-engine ")
    if found is None:
        raise Unreadable("the interpreter printed no answer")
    return found
