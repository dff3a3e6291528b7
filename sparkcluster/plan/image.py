"""The image of each node, the Ray staged with it, and their versions. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from sparkcluster import engines
from sparkcluster.facts.base import read
from sparkcluster.facts.docker import EngineFacts, Image
from sparkcluster.facts.engine import engine_of, expected_images
from sparkcluster.facts.model import Facts
from sparkcluster.spec import Spec
from sparkcluster.topology.model import Topology

# First version that was tested on two nodes with a token. Tokens need 2.52 (docs.ray.io, "Ray token authentication").
BROUGHT_RAY = "2.60.0"


def ray_name(engine: EngineFacts) -> str:
    """Name of the Ray build for ``engine``: version, Python and platform, such as 2.60.0-cp312-linux_aarch64."""
    python = "".join(re.findall(r"\d+", engine.python_version)[:2])
    return f"{BROUGHT_RAY}-cp{python}-{re.sub(r'[^A-Za-z0-9_]', '_', engine.platform)}"


def ray_directory(state_dir: str, engine: EngineFacts | None) -> str:
    """Directory of the staged Ray on a node, separate per version, Python and platform."""
    return f"{state_dir}/ray/{ray_name(engine) if engine is not None else 'any'}"


def without_ray(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> dict[str, EngineFacts]:
    """Nodes that need Ray but whose images lack it, with the engine that Ray must fit.

    Empty for an engine whose ranks never use Ray. An image that was not read yet is assumed to have Ray. With runtime
    ``process``, nothing is added to the user's Python.
    """
    by_ray = spec.playbook.executor != "native" and "ray" in engines.engine(spec.playbook.engine).executors
    if spec.inventory.runtime.kind != "docker" or not by_ray:
        return {}
    inside = {
        member.name: engine_of(facts[member.name])
        for group in topology.groups
        if len(group.members) > 1
        for member in group.members
    }
    return {name: found for name, found in inside.items() if found is not None and found.ray_version is None}


def has_brought_ray(facts: Facts) -> bool:
    """Whether the Ray for this node's engine is already staged."""
    engine = engine_of(facts)
    return engine is not None and ray_name(engine) in facts.rays


def local_ids(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> dict[str, str]:
    """Image ID to run on each node; for a node without the image, that of another node, else the reference."""
    ids = {name: image.id for name, image in expected_images(spec, facts, topology.by_rank).items()}
    return dict.fromkeys(facts, next(iter(ids.values()), str(spec.image))) | ids


def keeps_entrypoint(image: Image) -> bool:
    """Whether an image has NVIDIA's entrypoint, which sets up CUDA forward compatibility and runs a command.

    Images on an ``nvidia/cuda`` base may have this or another entrypoint, regardless of who built them.
    """
    return any("nvidia_entrypoint" in word for word in image.entrypoint)


def versions(engine: str, facts: Mapping[str, Facts], nodes: Collection[str]) -> dict[str, dict[str, str]]:
    """Known versions by node and name: ``engine``, ray, torch, nccl and driver."""
    found = {}
    for name in nodes:
        inside = engine_of(facts[name])
        known = {
            engine: inside.version if inside else None,
            "ray": inside.ray_version if inside else None,
            "torch": inside.torch_version if inside else None,
            "nccl": inside.nccl_loaded if inside else None,
            "driver": read(facts[name].driver),
        }
        found[name] = {what: version for what, version in known.items() if version is not None}
    return found


def image_identity(facts: Mapping[str, Facts], nodes: Collection[str]) -> dict[str, Any] | None:
    """``ids`` by node (from which containers start), ``build``, and diff IDs of ``layers``; None without an image."""
    images = {name: facts[name].image for name in nodes}
    there = {name: image for name, image in images.items() if isinstance(image, Image)}
    if not there:
        return None
    return {
        "ids": {name: image.id for name, image in there.items()},
        "build": next(image.build for image in there.values()),
        "layers": next((list(image.layers) for image in there.values() if image.layers), []),
    }
