"""Mods of eugr/spark-vllm-docker and sparkrun: directories with a ``run.sh`` that changes the container.

The runner copies each to ``/workspace/mods/NAME`` of every container and runs ``./run.sh`` there before the engine,
with ``WORKSPACE_DIR`` the directory in which the engine starts (``launch-cluster.sh``; sparkrun's ``core/mods.py``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sparkcluster.recipes.shell import shown
from sparkcluster.recipes.structured import short

_NAME = re.compile(r"(mods/)?([A-Za-z0-9_][\w.+-]*)/?")


def build(image: str, arguments: Sequence[str]) -> list[str]:
    """Notes on an image that ``build-and-copy.sh`` of spark-vllm-docker builds with ``arguments``."""
    where = "build it with build-and-copy.sh of spark-vllm-docker on the first node"
    notes = [f"container {shown(image)}: {where}"] if "/" not in image else []
    why = "which is for the image's build; build an image that has it"
    return [*notes, *(f"build_args: {shown(each)}, {why}" for each in arguments)]


def add(document: dict[str, Any], mods: Sequence[str], before: Sequence[str] = ()) -> list[str]:
    """Mount ``mods`` in ``document``, and run them in front of its setup lines; notes on what has to be done for it.

    ``before`` are setup lines in front of them.
    """
    mounts: list[dict[str, Any]] = []
    setup: list[str] = [*before]
    notes: list[str] = []
    names: set[str] = set()
    for mod in mods:
        found = _NAME.fullmatch(mod)
        if not found or ".." in mod or mod.endswith(".zip"):
            notes.append(f"mods: {short(mod)}: run its run.sh under setup, from a directory beside the playbook")
            continue
        name = found[2]
        if name not in names:
            mounts.append({"source": f"./mods/{name}", "target": f"/opt/mods/{name}"})
        names.add(name)
        setup.append(
            f"mkdir -p /workspace/mods && cp -r /opt/mods/{name} /workspace/mods/ && export WORKSPACE_DIR=$PWD && "
            f"cd /workspace/mods/{name} && chmod +x run.sh && ./run.sh"
        )
        notes.append(f"mods: {name}: copy its directory to mods/{name} beside the playbook; ranks are not privileged")
    if mounts:
        document["mounts"] = [*document.get("mounts", []), *mounts]
    if setup:
        document["setup"] = [*setup, *document.get("setup", [])]
    return notes
