"""What the gateway is told: ``config.json``, written by the controller and read again when it changes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Key:
    """An API key: its name, the SHA-256 of it in hex, and the models that it may use (None: all)."""

    name: str
    sha256: str
    models: tuple[str, ...] | None

    def allows(self, model: str) -> bool:
        """Whether it may use the model of this name in the inventory."""
        return self.models is None or model in self.models


@dataclasses.dataclass(frozen=True)
class Backend:
    """An engine: its group of the model's replicas, and its URL without a path."""

    group: str
    url: str


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of the inventory, on demand if it has ``idle_s``.

    ``sizes``: bytes that it takes of each node, None where unknown. ``start_s``: how long its last start took.
    ``backends`` is empty if it was never started.
    """

    name: str
    served: tuple[str, ...]
    kind: str
    context: int | None
    sizes: dict[str, int | None]
    idle_s: float | None
    start_s: float | None
    backends: tuple[Backend, ...]


@dataclasses.dataclass(frozen=True)
class Config:
    """The whole document; ``room``: bytes that models may take of each node. No ``keys``: everyone may use all."""

    cluster: str
    node: str
    listen: str
    port: int
    keys: tuple[Key, ...]
    engine_key: str | None
    door: str | None
    control: str
    room: dict[str, int]
    models: tuple[Model, ...]

    def model(self, name: str) -> Model:
        """The model of this name; KeyError if there is none."""
        return {model.name: model for model in self.models}[name]


def from_document(found: dict[str, Any]) -> Config:
    """``found`` as a Config; KeyError, TypeError or ValueError if it is none."""
    if found["version"] != 1:
        raise ValueError(f"version {found['version']} of config.json is unknown")
    models = [
        Model(
            **{**each, "served": tuple(each["served"]), "backends": tuple(Backend(**one) for one in each["backends"])}
        )
        for each in found["models"]
    ]
    keys = [
        Key(each["name"], each["sha256"], None if each["models"] is None else tuple(each["models"]))
        for each in found["keys"]
    ]
    rest = {name: value for name, value in found.items() if name != "version"}
    return Config(**{**rest, "models": tuple(models), "keys": tuple(keys)})


def read(path: Path) -> Config:
    """The Config in a file; OSError if it cannot be read, else as ``from_document``."""
    return from_document(json.loads(path.read_text()))
