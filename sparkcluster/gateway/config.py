"""The gateway's settings: ``config.json``, written by the controller and read again when it changes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of the inventory; it is on demand if it has ``idle_s``.

    ``sizes``: its bytes on each node, None if unknown. ``start_s``: duration of its recorded start.
    ``backends``: URLs of its engines without a path, one per replica; empty if it was never started.
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
    """The complete document.

    ``keys``: the models that an API key may use (None: all), by the key's SHA-256 in hex;
    without keys everyone may use all models. ``room``: bytes for models on a node.
    """

    listen: str
    port: int
    keys: dict[str, Sequence[str] | None]
    engine_key: str | None
    room: int
    models: Sequence[Model]


def read(text: str) -> Config:
    """Parse a Config; ValueError if ``text`` is not JSON, KeyError or TypeError if it is not a Config."""
    found: dict[str, Any] = json.loads(text)
    return Config(**{**found, "models": [Model(**each) for each in found["models"]]})
