"""Paths of a node that a playbook names: where they are, and which directory they must not leave. Pure."""

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
    """The repository of a snapshot in a cache, whose files are links into the rest of it; any other path as it is."""
    return re.sub(r"(/models--[^/]+)/snapshots/.*", r"\1", path)


def root(source: str, key: str, inventory: Inventory, facts: Facts, *, node: str) -> str:
    """The directory that ``source`` of a playbook's ``key`` has to be in when links are resolved on the node.

    That is the repository's folder in the hub's cache, or the permitted directory: containers may have written
    links there. Anywhere else it is ``source`` itself, since links are the user's own.

    Raises:
        PlanError: no playbook may have it, whichever name it has in the playbook.
    """
    stated = inventory.model_copy(update={"hf_home": facts.hf_home, "state_dir": facts.state_dir})
    refused = powers.never(source, stated, facts.home)
    if refused:
        hint = f"name another directory under {key} in the playbook"
        raise PlanError(f"{key}: {refused}", node=node, step="plan", hint=hint)
    place, hub = powers.normal(source), f"{powers.normal(facts.hf_home)}/hub/"
    if place.startswith(hub):
        return hub + place.removeprefix(hub).partition("/")[0]
    # A model needs no permission, so it may be a link in a directory that is permitted for reading alone.
    entries = [each for each in inventory.permit.mounts if key == "mounts" or each.endswith(powers.WRITABLE)]
    directories = [expand(powers.normal(each.removesuffix(powers.WRITABLE)), facts.home) for each in entries]
    return min((each for each in directories if f"{place}/".startswith(f"{each}/")), key=len, default=source)
