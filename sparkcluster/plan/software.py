"""What a group runs on: the image's identity, and versions of engine, Ray and driver. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sparkcluster.facts.base import read
from sparkcluster.facts.docker import Image
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts


def versions(engine: str, facts: Mapping[str, Facts], nodes: Collection[str]) -> dict[str, dict[str, str]]:
    """Versions by node, then by name: ``engine``, ray, torch, nccl and driver; without those that are unknown."""
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
    """``ids`` by node, by which containers start, ``build`` and diff IDs of the ``layers``; None without an image."""
    images = {name: facts[name].image for name in nodes}
    there = {name: image for name, image in images.items() if isinstance(image, Image)}
    if not there:
        return None
    return {
        "ids": {name: image.id for name, image in there.items()},
        "build": next(image.build for image in there.values()),
        "layers": next((list(image.layers) for image in there.values() if image.layers), []),
    }
