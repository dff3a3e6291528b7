"""Which image runs on each node, and where the Ray lies that is brought to one without."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sparkcluster.errors import PlanError
from sparkcluster.facts.model import EngineFacts, Facts, read
from sparkcluster.spec import Spec


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
