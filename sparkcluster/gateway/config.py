"""What the gateway is told: ``config.json``, written by the controller and read again when it changes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Key:
    """An API key: its name, the SHA-256 of it in hex, and the models that it may use (None: all)."""

    name: str
    sha256: str
    models: Sequence[str] | None


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of the inventory, on demand if it has ``idle_s``.

    ``sizes``: bytes that it takes of each node, None where unknown. ``start_s``: how long its last start took.
    ``backends``: URLs of its engines without a path, one of each replica; none if it was never started.
    """

    name: str
    served: Sequence[str]
    kind: str
    context: int | None
    sizes: dict[str, int | None]
    idle_s: float | None
    start_s: float | None
    backends: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Config:
    """The whole document; ``room``: bytes that models may take of each node. No ``keys``: everyone may use all."""

    version: int
    cluster: str
    node: str
    listen: str
    port: int
    keys: Sequence[Key]
    engine_key: str | None
    door: str | None
    control: str
    room: dict[str, int]
    models: Sequence[Model]


def from_document(found: dict[str, Any]) -> Config:
    """``found`` as a Config; KeyError or TypeError if it is none."""
    models = [Model(**{**each, "backends": [one["url"] for one in each["backends"]]}) for each in found["models"]]
    return Config(**{**found, "models": models, "keys": [Key(**each) for each in found["keys"]]})


def read(path: Path) -> Config:
    """The Config in a file; OSError if it cannot be read, ValueError if it is no JSON, else as ``from_document``."""
    return from_document(json.loads(path.read_text()))
