"""The engine and the Ray beside it, as far as they decide how a rank is started."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.docker import EngineFacts, Image
from sparkcluster.facts.model import Facts

# Token authentication came with Ray 2.52 (docs.ray.io, "Ray token authentication").
RAY_WITH_TOKEN = (2, 52)


def engine_of(facts: Facts) -> EngineFacts | None:
    """Facts of the engine that will run on a node, with either runtime; None where they are unknown."""
    if facts.engine is not None and not isinstance(facts.engine, Unread):
        return facts.engine
    image = read(facts.image)
    return read(image.inside) if image is not None else None


def has_ray(engine: EngineFacts | None) -> bool:
    """Whether the engine's Python can import Ray; assumed while its facts are unknown."""
    return engine is None or engine.ray_version is not None


def has_token(engine: EngineFacts | None, *, brought: bool) -> bool:
    """Whether this Ray supports token authentication, as one that we bring along does."""
    if engine is None or engine.ray_version is None:
        return brought
    numbers = tuple(int(number) for number in re.findall(r"\d+", engine.ray_version)[:2])
    return numbers >= RAY_WITH_TOKEN


def builds(facts: Mapping[str, Facts]) -> dict[str, str]:
    """Identity of the build of the image on every node that has it: equal for equal builds.

    An image ID is the hash of the image's configuration, environment included, where every engine keeps images in
    its own store. containerd's store calls the same image by the hash of what it was pulled or loaded as, so that
    one build has several IDs: as soon as one node uses it, layers and what a container starts with are compared.
    """
    there = {name: node.image for name, node in facts.items() if isinstance(node.image, Image)}
    engines = [read(facts[name].docker) for name in there]
    if all(engine is not None and not engine.containerd_store for engine in engines):
        return {name: image.id for name, image in there.items()}
    ids = [image.id for image in there.values()]
    if len(set(ids)) == 1:
        return dict(zip(there, ids, strict=True))
    return {
        name: " ".join([*image.layers, *image.entrypoint, *image.env_names, image.config_sum or ""])
        if image.layers
        else image.id
        for name, image in there.items()
    }


def image_room_bytes(facts: Facts, image: Image, left_out: int = 0) -> int:
    """Bytes that another node needs to load ``image``, which the node of ``facts`` has, but for the ``left_out`` ones.

    Docker keeps the archive beside the layers until the last one is unpacked. containerd's store reports the size of
    the compressed layers; of images with CUDA and torch, 8 to 10 GB become 24 to 30 GB.
    """
    docker = read(facts.docker)
    return max(0, image.size_bytes - left_out) * (4 if docker is not None and docker.containerd_store else 2)


def image_digest(facts: Iterable[Facts]) -> str | None:
    """The playbook's image as any node can pull it; a copy from another node has lost that name."""
    images = (read(node.image) for node in facts)
    return next((image.digest for image in images if image is not None and image.digest), None)
