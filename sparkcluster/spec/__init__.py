"""What the user wrote: inventory and playbook."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import Playbook


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """Inventory and playbook together, with the files they came from."""

    inventory: Inventory
    playbook: Playbook
    inventory_path: Path
    playbook_path: Path
