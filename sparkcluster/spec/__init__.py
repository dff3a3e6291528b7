"""Inventory and playbook as the user wrote them; together they form a ``Spec``.

``load`` reads YAML with the position of every value (``document``), finds the playbook (``library``, ``assignments``),
merges its bases and variants (``compose``, ``variants``), and validates it against the pydantic models in ``inventory``
and ``playbook`` and against rules across keys (``check``, ``check_playbook``). Each model of an inventory with several
models is a spec of its own (``models``). All problems are reported together (``messages``). ``powers`` lists what a
spec can do on the nodes; nothing runs without ``consent``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkcluster.spec.document import KeyPath
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import Playbook
from sparkcluster.spec.playbook_files import FileSet

BUILT = "sparkcluster-build"
"""Repository name of images built on nodes; never pushed to a registry."""


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """Inventory and playbook with their files.

    Attributes:
        files: playbook files that it mounts, by the source of the mount.
        places: file and line of every key of the playbook, or a flag and None; for findings.
        build: the directory of ``playbook.build``; None without a build, or if it cannot be read.
        kept_image_name: the running image of a kept release, if the playbook's reference now names another image.
        image_build: the build (``facts.docker.Image``) of its image, as recorded by a release or at the last staging;
            empty if unknown.
        selected: the selection in the inventory or on the command line: ``playbook``, and keys set over it.
        bundled: whether the playbook is an unchanged bundled one; None to decide by its files.
        model: name of its entry in ``models`` of the inventory; empty without ``models``.
        siblings: names of the other entries that share a node with it.
        gateway_node: label of the node that runs the gateway; empty without a gateway.
        gateway_cluster: cluster name of the gateway in labels and paths; empty without ``models``.
        idle_s: seconds without a request after which it is stopped; None for an always-on model.
        stopped_after: number of siblings that are stopped before it if memory runs out.
        accepted: digest that the operator accepted (``spec.consent``); empty if not accepted.
    """

    inventory: Inventory
    playbook: Playbook
    inventory_path: Path
    playbook_path: Path
    files: Mapping[str, FileSet] = dataclasses.field(default_factory=dict)
    places: Mapping[KeyPath, tuple[str, int | None]] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )
    build: FileSet | None = None
    kept_image_name: str | None = None
    image_build: str = ""
    bundled: bool | None = None
    selected: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    model: str = ""
    siblings: tuple[str, ...] = ()
    gateway_node: str = ""
    gateway_cluster: str = ""
    idle_s: float | None = None
    stopped_after: int = 0
    accepted: str = dataclasses.field(default="", compare=False)

    @property
    def reference(self) -> str | None:
        """The image in messages: the built image, else the playbook's."""
        wanted, found = self.playbook.build, self.build
        if wanted is None or found is None:
            return self.playbook.image
        made_of = [found.mark, self.playbook.image, wanted.dockerfile, wanted.script]
        return f"{BUILT}:{hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:32]}"

    @property
    def image(self) -> str | None:
        """The name of the running image in Docker."""
        return self.kept_image_name or self.reference

    def differs(self, served: Mapping[str, Any]) -> str:
        """Message about keys of the inventory that differ from the selection ``served``; empty without differences."""
        now = self.inventory.selected
        keys = [key for key in {**now, **served} if served and now.get(key) != served.get(key)]
        return f"differs from {self.inventory_path.name}: {', '.join(keys)}" if keys else ""


__all__ = ["Inventory", "KeyPath", "Playbook", "Spec"]
