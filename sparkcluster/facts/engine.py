"""The engine and the Ray beside it, as far as they decide how a rank is started."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.docker import EngineFacts, Image
from sparkcluster.facts.model import Facts
from sparkcluster.spec import Spec

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


def is_known(image: Image, spec: Spec) -> bool:
    """Whether it is what a release recorded or was staged from here, else what the digest of the playbook names.

    Of an ID or a digest the node says that it has it; a build is compared with what arrives elsewhere.
    """
    digest = (spec.image or "").partition("@")[2]
    return image.build == spec.image_is if spec.image_is else digest == (image.digest or "").partition("@")[2] != ""


def expected_images(spec: Spec, facts: Mapping[str, Facts], names: Sequence[str]) -> dict[str, Image]:
    """The image on each of the nodes ``names`` that has the expected one; all others lack it.

    That is what ``is_known``. A tag of the playbook may get another image: there it is what the first node has, a head,
    which is where people build and pull.
    """
    images = {name: image for name in names if name in facts and isinstance(image := facts[name].image, Image)}
    known = [image for image in images.values() if is_known(image, spec)]
    fixed = spec.kept_image is not None or "@" in (spec.image or "")
    if not images or ((spec.kept_image or (fixed and spec.image_is)) and not known):
        return {}
    there = known if known and (fixed or names[0] not in images) else list(images.values())
    return {name: image for name, image in images.items() if image.build == there[0].build}


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
