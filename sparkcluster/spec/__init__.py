"""Inventory and playbook as the user wrote them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from sparkcluster.spec.beside import Beside
from sparkcluster.spec.document import KeyPath
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import Playbook


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """Inventory and playbook together, with the files they came from.

    Attributes:
        beside: what the playbook mounts from its own directory, by the source of the mount.
        places: file and line of every key of the playbook, for findings about what was written; or a flag and None.
        kept_image: name of the image that runs, where that is not what the playbook's reference stands for now: that of
            a kept release.
        bundled: whether the playbook came with sparkcluster unchanged; None where its files say that.
    """

    inventory: Inventory
    playbook: Playbook
    inventory_path: Path
    playbook_path: Path
    beside: Mapping[str, Beside] = dataclasses.field(default_factory=dict)
    places: Mapping[KeyPath, tuple[str, int | None]] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )
    kept_image: str | None = None
    bundled: bool | None = None

    @property
    def image(self) -> str | None:
        """The name by which Docker knows the image that runs."""
        return self.kept_image or self.playbook.image


__all__ = ["Inventory", "KeyPath", "Playbook", "Spec"]
