"""Fixes folders of root in Hugging Face's cache, left there by containers, before weights are written to them."""

from __future__ import annotations

from collections.abc import Mapping

from sparkcluster.errors import CommandFailed, StageError
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.runtime import Changer
from sparkcluster.staging.copy import Progress

_LIMIT_S = 180  # a container and its removal: 120 + 20


def take(changer: Changer, repository: str, facts: Mapping[str, Facts], progress: Progress) -> None:
    """Change the owner of root's folders of ``repository`` to the user, on the nodes of ``facts`` that need it.

    The hub folder itself and folders of other models are not changed.

    Raises:
        StageError: a container failed to do so.
    """
    steps = {}
    for node, found in facts.items():
        weights, image = read(found.weights), read(found.image)
        foreign = weights.foreign if weights is not None else None
        if foreign is None or foreign.uid:
            continue
        whose = "cannot be created" if foreign.missing else "belongs to root"
        how = f"changing the owner of the folders of {repository} to {found.user}, in a container"
        progress(node, f"{foreign.path} {whose}: {how}")
        folders = {"hf_home": found.hf_home, "repository": repository}
        steps[node] = [{"do": "own", **folders, "image": image.id if image else None}]
    try:
        changer.apply(steps, timeout_s=_LIMIT_S)
    except CommandFailed as error:
        hint = error.hint or "sparkcluster preflight INVENTORY   shows the command"
        raise StageError(error.message, node=error.node, step="copy weights", hint=hint) from error
