"""The kinds of artifacts, and the request that downloads one from the hub or a registry."""

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
"""A local file, by path or open, and the request that stores it (``node.upload``)."""
SendingTo = Callable[[str], Iterable[Sending]]
"""The files to send to a node, by its state directory."""


def download_request(spec: Spec, facts: Facts, what: Artifact, token: str | None) -> dict[str, Any]:
    """Request for the node of ``facts``: to ``node.pull`` for an image, else to ``node.fetch``.

    The image that downloads weights comes from the playbook, so it gets no ``token``. The token is sent only to the hub
    that this machine uses, not to another hub in the node's configuration.
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
    """Address of the hub to use: ``HF_ENDPOINT`` of this machine, else huggingface.co if there is a ``token``.

    Else None: the node's own setting.
    """
    return os.environ.get("HF_ENDPOINT") or (HUB_ADDRESS if token else None)
