"""What an engine's Python has installed, without importing the engine (which would take many seconds)."""

from __future__ import annotations

import json
from typing import Any, Dict

from sparkcluster.node import engine
from sparkcluster.node.machine import Unreadable
from sparkcluster.node.shared import COMPILERS

# Runs in the interpreter in question, on the node or inside the image; the engine's part makes ``ENGINE`` of what it
# reads there itself.
_READERS = """
import ast, glob, importlib.util, json, os, platform, re, shutil, sys
try:
    from importlib.metadata import PackageNotFoundError, version
except ImportError:
    version = None
def installed(*names):
    for name in names:
        try:
            return version(name)
        except Exception:
            pass
    return None
def folder(name):
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        return None
    return next(iter((spec and spec.submodule_search_locations) or ()), None)
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    tag = "manylinux_%s_%s" % ("_".join(libc.split(".")[:2]), platform.machine())
except Exception:
    tag = "linux_" + platform.machine()
def text(*parts):
    with open(os.path.join(*parts), encoding="utf-8", errors="replace") as file:
        return file.read()
def torch():
    try:
        found = installed("torch")
        return found or re.search("__version__[^=]*= *.([^'\\"]+)", text(folder("torch"), "version.py"))[1]
    except Exception:
        return None
def nccl():
    found = installed("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl")
    names = glob.glob("/usr/lib/*/libnccl.so.*.*") + glob.glob("/usr/local/lib/libnccl.so.*.*")
    found = found or next((name.partition(".so.")[2] for name in sorted(names)), None)
    return found or os.environ.get("NCCL_VERSION", "").partition("-")[0] or None
"""
_ANSWER = """
print("sparkcluster-engine " + json.dumps({
    "python": sys.executable,
    "python_version": platform.python_version(),
    "platform": tag,
    "ray_version": installed("ray"),
    "triton_version": installed("triton", "pytorch-triton"),
    "torch_version": torch(),
    "nccl_version": nccl(),
    "compiler": any(map(shutil.which, %r)),
    "ngc": os.path.exists("/opt/nvidia/nvidia_entrypoint.sh"),
    **ENGINE
}))
""" % (COMPILERS,)


def snippet(inspection: str) -> str:
    """The program for the interpreter, with the engine's part."""
    return _READERS + inspection + _ANSWER


SNIPPET = snippet(engine.INSPECTION)


def parse(output: str) -> Dict[str, Any]:
    """The document that SNIPPET printed; an image's entrypoint may have printed something before it.

    Raises:
        Unreadable: it printed none.
    """
    for line in reversed(output.splitlines()):
        mark, _, text = line.partition(" ")
        if mark == "sparkcluster-engine":
            try:
                document = json.loads(text)
            except (ValueError, RecursionError):
                break
            if isinstance(document, dict):
                return document
    raise Unreadable("the interpreter printed no answer")
