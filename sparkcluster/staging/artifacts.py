"""What a playbook's model consists of as far as nodes must have it, and the requests that fetch and copy each part.

``staging.plan`` finds which nodes lack it, everything else in this room treats all artifacts alike. Drafters, adapters
and tokenizers of their own (``Playbook.companions``) are staged as weights of a playbook that serves them alone. Ray is
staged apart (``staging.ray``), small files too (``staging.small_files``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sparkcluster.facts.docker import Image
from sparkcluster.facts.model import Facts
from sparkcluster.facts.weights import Weights
from sparkcluster.node.shared import HUB_ADDRESS, hub_folder
from sparkcluster.spec import Spec

Artifact = Literal["weights", "image", "vocabulary", "ray", "files"]
Request = dict[str, Any]


def artifacts(spec: Spec, selected: Sequence[Artifact]) -> list[Artifact]:
    """The artifacts of ``selected`` that this spec has, in staging order."""
    found: list[Artifact] = []
    if "image" in selected and spec.inventory.runtime.kind == "docker" and spec.image:
        found.append("image")  # first: it may hold the downloader of the weights
    if "weights" in selected:
        found.append("weights")
    return found


def download_request(spec: Spec, facts: Facts, what: Artifact, token: str | None) -> dict[str, Any]:
    """Request on the node of ``facts``, for ``node.pull`` of an image, else for ``node.fetch``.

    The image that downloads weights is the recipe's, so it gets no ``token``. That goes to the hub that this machine
    asks, and to no other that the node may be configured for.
    """
    if what == "image":
        return {"reference": spec.image}
    return {
        "id": spec.playbook.model.id,
        "revision": spec.playbook.model.revision,
        "choice": spec.playbook.choice,
        "hf_home": facts.hf_home,
        "image": facts.image.id if token is None and isinstance(facts.image, Image) else None,
        "token": token,
        "endpoint": endpoint(token),
    }


def endpoint(token: str | None) -> str | None:
    """Address of the hub that this machine asks, if it names one. A ``token`` goes to no other."""
    return os.environ.get("HF_ENDPOINT") or (HUB_ADDRESS if token else None)


def weights_request(spec: Spec, facts: Mapping[str, Facts], first: str, node: str, *, verify: bool) -> Request:
    """Request for ``node.listing`` and ``node.worker`` on ``node``; ``first`` is the node whose revision all get."""
    model, weights = spec.playbook.model, facts[first].weights
    request: Request = {"verify": verify, "choice": spec.playbook.choice}
    if model.id is None:
        return {**request, "root": model.path}
    return {
        **request,
        "root": f"{facts[node].hf_home}/{hub_folder(model.id)}",
        "ref": model.revision,
        "revision": (isinstance(weights, Weights) and weights.revision) or "",  # none is no revision, and refused
    }
