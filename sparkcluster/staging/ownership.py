"""Root's folders in Hugging Face's cache, which its own containers leave there, before weights are written to them."""

from __future__ import annotations

from collections.abc import Mapping

from sparkcluster.errors import CommandFailed, StageError
from sparkcluster.facts.base import read
from sparkcluster.facts.docker import Image
from sparkcluster.facts.model import Facts
from sparkcluster.runtime import Changer
from sparkcluster.staging.copy import Progress

_LIMIT_S = 180  # a container and its removal: 120 + 20


def take(
    changer: Changer, repository: str, facts: Mapping[str, Facts], images: Mapping[str, Image], progress: Progress
) -> None:
    """Make the folders of ``repository`` the user's on the nodes of ``facts`` where root's are in the way.

    That of the hub itself, and those of other models, stay as they are. ``images`` came to the nodes since their facts.

    Raises:
        StageError: no container could.
    """
    steps = {}
    for node, found in facts.items():
        weights, image = read(found.weights), images.get(node) or read(found.image)
        foreign = weights.foreign if weights is not None else None
        if foreign is None or foreign.uid:
            continue
        whose = "cannot be created" if foreign.missing else "belongs to root"
        how = f"making the folders of {repository} those of {found.user}, in a container"
        progress(node, f"{foreign.path} {whose}: {how}")
        folders = {"hf_home": found.hf_home, "repository": repository}
        steps[node] = [{"do": "own", **folders, "image": image.id if image else None}]
    try:
        changer.apply(steps, timeout_s=_LIMIT_S)
    except CommandFailed as error:
        hint = error.hint or "sparkcluster preflight INVENTORY   has the command"
        raise StageError(error.message, node=error.node, step="copy weights", hint=hint) from error
