"""Inventory and playbook as the user wrote them, together a ``Spec``: which image is meant is said here.

``load`` reads files by ``document`` (YAML with the place of every value), chooses the playbook (``library``,
``assignments``), puts what it extends and its variants together (``compose``, ``variants``), and holds it against the
models in ``inventory`` and ``playbook`` and what no model says (``check``, ``check_playbook``). Of an inventory with
several models, each is a spec of its own (``models``). All problems are
reported at once (``messages``). What a spec can do on the nodes is in ``powers``; nothing runs without ``consent``.
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
from sparkcluster.spec.playbook_files import Beside

BUILT = "sparkcluster-build"
"""Repository of the images that nodes build; it is in no registry."""


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """Inventory and playbook together, with the files they came from.

    Attributes:
        beside: what the playbook mounts from its own directory, by the source of the mount.
        places: file and line of every key of the playbook, for findings about what was written; or a flag and None.
        build: the directory of ``playbook.build``; None without one, or where it cannot be read.
        kept_image: name of the image that runs, where that is not what the playbook's reference stands for now: that of
            a kept release.
        image_is: the build (``facts.docker.Image``) of its image, as a release recorded it, else as it was last staged
            from here; empty where neither is known.
        selected: what was chosen to serve in the inventory or on the command line: ``playbook``, and keys over it.
        bundled: whether the playbook came with sparkcluster unchanged; None where its files say that.
        model: name of its entry in ``models`` of the inventory; empty of one that has ``playbook``.
        siblings: names of the other entries that share a node with it.
        gateway_node: label of the node that runs the gateway of the inventory; empty without one.
        gateway_cluster: the name under which it is in labels and paths there, or was; empty without ``models``.
        idle_s: after how many seconds without a request it is stopped; None of a model that serves all along.
        victim: how many of them end before it where a node runs out of memory.
        accepted: the digest of what the operator accepted (``spec.consent``); empty where nothing was.
    """

    inventory: Inventory
    playbook: Playbook
    inventory_path: Path
    playbook_path: Path
    beside: Mapping[str, Beside] = dataclasses.field(default_factory=dict)
    places: Mapping[KeyPath, tuple[str, int | None]] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )
    build: Beside | None = None
    kept_image: str | None = None
    image_is: str = ""
    bundled: bool | None = None
    selected: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    model: str = ""
    siblings: tuple[str, ...] = ()
    gateway_node: str = ""
    gateway_cluster: str = ""
    idle_s: float | None = None
    victim: int = 0
    accepted: str = dataclasses.field(default="", compare=False)

    @property
    def reference(self) -> str | None:
        """The image as people read it: that which is built, else the playbook's."""
        wanted, found = self.playbook.build, self.build
        if wanted is None or found is None:
            return self.playbook.image
        made_of = [found.mark, self.playbook.image, wanted.dockerfile, wanted.script]
        return f"{BUILT}:{hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:32]}"

    @property
    def image(self) -> str | None:
        """The name by which Docker knows the image that runs."""
        return self.kept_image or self.reference

    def differs(self, served: Mapping[str, Any]) -> str:
        """Which keys of the inventory say something else than the selection ``served``, in words; empty without any."""
        now = self.inventory.selected
        keys = [key for key in {**now, **served} if served and now.get(key) != served.get(key)]
        return f"differs from {self.inventory_path.name}: {', '.join(keys)}" if keys else ""


__all__ = ["Inventory", "KeyPath", "Playbook", "Spec"]
