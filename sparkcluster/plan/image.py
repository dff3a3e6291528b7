"""What lies in the image or the engine's Python, as far as it decides how a rank is started."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from sparkcluster.errors import PlanError
from sparkcluster.facts.model import EngineFacts, Facts, Image, Unread, read
from sparkcluster.spec import Spec

Family = Literal["upstream", "ngc", "other"]

# Token authentication came with Ray 2.52 (docs.ray.io, "Ray token authentication").
RAY_WITH_TOKEN = (2, 52)


def family(image: Image) -> Family:
    """Who built the image: NGC's entrypoint sets up CUDA forward compatibility and has to stay."""
    inside = read(image.inside) if image.inside is not None else None
    if inside is not None and inside.family != "other":
        return inside.family
    entrypoint = " ".join(image.entrypoint)
    if "nvidia_entrypoint" in entrypoint or image.reference.startswith("nvcr.io/nvidia/"):
        return "ngc"
    return "upstream" if "vllm" in entrypoint else "other"


def engine_of(facts: Facts) -> EngineFacts | None:
    """What is known of the engine that will run on a node, whichever runtime holds it."""
    if facts.engine is not None and not isinstance(facts.engine, Unread):
        return facts.engine
    image = read(facts.image) if facts.image is not None else None
    return read(image.inside) if image is not None and image.inside is not None else None


def has_ray(engine: EngineFacts | None) -> bool:
    """Whether the engine's Python can import Ray; believed until it has been asked."""
    return engine is None or engine.ray_version is not None


def has_token(engine: EngineFacts | None, *, brought: bool) -> bool:
    """Whether this Ray asks its members for a token; one that we bring along does."""
    if engine is None or engine.ray_version is None:
        return brought
    numbers = tuple(int(number) for number in re.findall(r"\d+", engine.ray_version)[:2])
    return numbers >= RAY_WITH_TOKEN


def ray_directory(state_dir: str, engine: EngineFacts | None) -> str:
    """Where on a node the Ray that is brought along lies, apart for each Python and platform."""
    if engine is None:
        return f"{state_dir}/ray/any"
    python = "".join(re.findall(r"\d+", engine.python_version)[:2])
    return f"{state_dir}/ray/cp{python}-{re.sub(r'[^A-Za-z0-9_]', '_', engine.platform)}"


def local_ids(spec: Spec, facts: Mapping[str, Facts]) -> dict[str, str]:
    """Image ID to run on each node. A node that lacks the image gets what another has, else the reference.

    Raises:
        PlanError: runtime ``docker`` and a playbook without image.
    """
    reference = spec.playbook.image
    if reference is None:
        raise PlanError(
            f"playbook {spec.playbook.name} names no image, and runtime docker needs one",
            step="plan",
            hint="give image in the playbook, or runtime: {kind: process} in the inventory",
        )
    own = {}
    for name, fact in facts.items():
        image = read(fact.image) if fact.image is not None else None
        own[name] = image.id if image is not None else None
    anyone = next((own[name] for name in sorted(own) if own[name]), None) or reference
    return {name: found or anyone for name, found in own.items()}
