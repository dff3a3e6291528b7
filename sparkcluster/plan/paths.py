"""Paths of a node that a playbook names, and the directories that must contain them. Pure."""

from __future__ import annotations

import re

from sparkcluster.errors import PlanError
from sparkcluster.facts.model import Facts
from sparkcluster.spec import powers
from sparkcluster.spec.inventory import Inventory


def expand(path: str, home: str) -> str:
    """``path`` with a leading ``~`` replaced by the node's home directory."""
    return home + path[1:] if path == "~" or path.startswith("~/") else path


def repository(path: str) -> str:
    """The repository folder of a snapshot in a cache, whose files are links into it; other paths unchanged."""
    return re.sub(r"(/models--[^/]+)/snapshots/.*", r"\1", path)


def root(source: str, key: str, inventory: Inventory, facts: Facts, *, node: str) -> str:
    """The directory that must contain ``source`` of a playbook's ``key`` after links are resolved on the node.

    This is the repository's folder in the Hugging Face cache, or the permitted directory, since containers may have
    written links there. Elsewhere it is ``source`` itself, since only the user can have written links.

    Raises:
        PlanError: the path is never allowed.
    """
    stated = inventory.model_copy(update={"hf_home": facts.hf_home, "state_dir": facts.state_dir})
    refused = powers.never(source, stated, facts.home)
    if refused:
        hint = f"use another directory for {key} in the playbook"
        raise PlanError(f"{key}: {refused}", node=node, step="plan", hint=hint)
    place, hub = powers.normal(source), f"{powers.normal(facts.hf_home)}/hub/"
    if place.startswith(hub):
        return hub + place.removeprefix(hub).partition("/")[0]
    # A model needs no permission, so it may be a link in a directory with only a read permission.
    entries = [each for each in inventory.permit.mounts if key == "mounts" or each.endswith(powers.WRITABLE)]
    directories = [expand(powers.normal(each.removesuffix(powers.WRITABLE)), facts.home) for each in entries]
    return min((each for each in directories if f"{place}/".startswith(f"{each}/")), key=len, default=source)
