"""Facts of engine and Ray that determine how a rank is started."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.docker import EngineFacts, Image
from sparkcluster.facts.model import Facts
from sparkcluster.spec import Spec

# Ray has token authentication since 2.52 (docs.ray.io, "Ray token authentication").
RAY_WITH_TOKEN = (2, 52)


def engine_of(facts: Facts) -> EngineFacts | None:
    """Facts of the engine that will run on a node, with either runtime; None if unknown."""
    if facts.engine is not None and not isinstance(facts.engine, Unread):
        return facts.engine
    image = read(facts.image)
    return read(image.inside) if image is not None else None


def has_ray(engine: EngineFacts | None) -> bool:
    """Whether the engine's Python can import Ray; True while unknown."""
    return engine is None or engine.ray_version is not None


def has_token(engine: EngineFacts | None, *, brought: bool) -> bool:
    """Whether Ray supports token authentication; a Ray that sparkcluster installs (``brought``) does."""
    if engine is None or engine.ray_version is None:
        return brought
    numbers = tuple(int(number) for number in re.findall(r"\d+", engine.ray_version)[:2])
    return numbers >= RAY_WITH_TOKEN


def is_known(image: Image, spec: Spec) -> bool:
    """Whether ``image`` is the build that a release recorded or that was staged from here, else the playbook's digest.

    An ID or a digest is only the node's claim; a build is verified when the image is copied.
    """
    digest, build = (spec.image or "").partition("@")[2], spec.image_build
    return image.build == build if build else digest == (image.digest or "").partition("@")[2] != ""


def expected_images(spec: Spec, facts: Mapping[str, Facts], names: Sequence[str]) -> dict[str, Image]:
    """The expected image on each of the nodes ``names`` that has it; the other nodes lack it.

    Expected is an image that ``is_known``. For a tag, which may point to a new image, it is the image of the first
    node:
    a head, where users build and pull.
    """
    images = {name: image for name in names if name in facts and isinstance(image := facts[name].image, Image)}
    known = [image for image in images.values() if is_known(image, spec)]
    fixed = spec.kept_image_name is not None or "@" in (spec.image or "")
    if not images or ((spec.kept_image_name or (fixed and spec.image_build)) and not known):
        return {}
    there = known if known and (fixed or names[0] not in images) else list(images.values())
    return {name: image for name, image in images.items() if image.build == there[0].build}


def image_room_bytes(facts: Facts, image: Image, left_out: int = 0) -> int:
    """Bytes that another node needs to load ``image``, without ``left_out`` bytes; ``facts`` are of a node that has it.

    Docker keeps the archive until the last layer is unpacked. containerd's store reports the size of compressed layers;
    for images with CUDA and torch, 8 to 10 GB become 24 to 30 GB.
    """
    docker = read(facts.docker)
    return max(0, image.size_bytes - left_out) * (4 if docker is not None and docker.containerd_store else 2)


def image_digest(facts: Iterable[Facts]) -> str | None:
    """The playbook's image as any node can pull it; a copy from another node has no digest."""
    images = (read(node.image) for node in facts)
    return next((image.digest for image in images if image is not None and image.digest), None)
