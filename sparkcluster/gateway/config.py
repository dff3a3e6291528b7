"""What the gateway is told: ``config.json``, written by the controller and read again when it changes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of the inventory, on demand if it has ``idle_s``.

    ``sizes``: bytes that it takes of each node, None where unknown. ``start_s``: how long its recorded start took.
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
    """The whole document.

    ``keys``: the models that an API key may use (None: all), by its SHA-256 in
    hex; without keys everyone may use all. ``room``: bytes that models may take of a node.
    """

    listen: str
    port: int
    keys: dict[str, Sequence[str] | None]
    engine_key: str | None
    room: int
    models: Sequence[Model]


def read(text: str) -> Config:
    """The Config that ``text`` is; ValueError if it is no JSON, KeyError or TypeError if it is no Config."""
    found: dict[str, Any] = json.loads(text)
    return Config(**{**found, "models": [Model(**each) for each in found["models"]]})
