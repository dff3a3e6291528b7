"""The vLLM in an image, as nodes report it. Separate from the table of versions, which is used without facts."""

from __future__ import annotations

from collections.abc import Iterable

from sparkcluster.engines.vllm.versions import UNKNOWN, Family, Versions, of_reference, of_text
from sparkcluster.facts.base import read
from sparkcluster.facts.docker import Image
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts


def of_engine(image: str | None, facts: Iterable[Facts] = ()) -> Versions:
    """The versions that the engine of an image may have: as reported by its nodes, else by its tag.

    Without a container ``image`` is None.
    """
    for node in facts:
        engine = engine_of(node)
        reported = of_text(engine.version or "") if engine is not None else UNKNOWN
        if reported.exact is not None:
            return reported
    return of_reference(image).versions if image else UNKNOWN


def family(image: Image) -> Family:
    """The publisher of an image on a node."""
    if image.label_version or "NVIDIA_VLLM_VERSION" in image.env_names:
        return "ngc"
    inside = read(image.inside)
    if inside is not None and inside.family != "other":
        return inside.family
    return "upstream" if "vllm" in " ".join(image.entrypoint) else "other"
