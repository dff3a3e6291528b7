"""Which vLLM the nodes report that an image contains. Apart from the table, which is read before any fact is there."""

from __future__ import annotations

from collections.abc import Iterable

from sparkcluster.engines.vllm.versions import UNKNOWN, Family, Versions, of_reference, of_text
from sparkcluster.facts.base import read
from sparkcluster.facts.docker import Image
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts


def of_engine(image: str | None, facts: Iterable[Facts] = ()) -> Versions:
    """The versions that the engine of an image may have: what a node that will run it reports, else what its tag says.

    Without a container ``image`` is None.
    """
    for node in facts:
        engine = engine_of(node)
        reported = of_text(engine.version or "") if engine is not None else UNKNOWN
        if reported.exact is not None:
            return reported
    return of_reference(image).versions if image else UNKNOWN


def family(image: Image) -> Family:
    """Who built an image that is on a node."""
    if image.labels_vllm or "NVIDIA_VLLM_VERSION" in image.env_names:
        return "ngc"
    inside = read(image.inside)
    if inside is not None and inside.family != "other":
        return inside.family
    return "upstream" if "vllm" in " ".join(image.entrypoint) else "other"
