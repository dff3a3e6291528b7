"""Writes and removes the journal of a switch, ``switch.json`` on every node; who reads it is ``plan.switch``.

It is written before the first rank is stopped, and again before a way back is begun, and removed at the end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from typing import Any

from sparkcluster.facts.model import Facts
from sparkcluster.node.shared import SWITCH_FILE
from sparkcluster.release.outcome import origin_of
from sparkcluster.runtime.change import Step
from sparkcluster.runtime.lease import this_operator
from sparkcluster.spec import Spec


def document(spec: Spec, *, number: int, source: int, groups: Collection[str], back: int | None) -> dict[str, Any]:
    """What is written of a switch from release ``source`` to ``spec`` as release ``number``.

    ``back`` is the kept release that ``spec`` is of; None where it is a new one.
    """
    return {
        "number": number,
        "source": source,
        "back": back,
        "groups": sorted(groups),
        "operator": this_operator(),
        "began_at": time.time(),
        **origin_of(spec),
    }


def write(spec: Spec, facts: Mapping[str, Facts], switch: Mapping[str, Any]) -> dict[str, list[Step]]:
    """Steps that write ``switch`` on every node."""
    content = json.dumps(switch, sort_keys=True)
    return {name: [{"do": "put", "path": _path(spec, node), "content": content}] for name, node in facts.items()}


def remove(spec: Spec, facts: Mapping[str, Facts]) -> dict[str, list[Step]]:
    """Steps that remove it from every node."""
    return {name: [{"do": "delete", "path": _path(spec, node)}] for name, node in facts.items()}


def _path(spec: Spec, facts: Facts) -> str:
    return f"{facts.state_dir}/clusters/{spec.inventory.cluster}/{SWITCH_FILE}"
