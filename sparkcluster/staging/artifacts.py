"""The kinds of artifacts that nodes must have, and the request that downloads one from the hub or a registry."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, Literal

from sparkcluster.facts.docker import Image
from sparkcluster.facts.model import Facts
from sparkcluster.node.shared import HUB_ADDRESS
from sparkcluster.spec import Spec

Artifact = Literal["weights", "image", "vocabulary", "ray", "files"]
Request = dict[str, Any]
Sending = tuple[Path | IO[bytes], Request]
"""A file of this machine, which may be open, and the request that takes it (``node.upload``)."""
SendingTo = Callable[[str], Iterable[Sending]]
"""What is sent to a node, by its state directory."""


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
