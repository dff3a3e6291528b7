"""What was read of a model, from whatever place."""

from __future__ import annotations

import dataclasses
from typing import Any

from sparkcluster.models.safetensors import Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """What is known of a model.

    Attributes:
        name: directory, file or repository.
        config: its config.json.
        tensors: of its safetensors files; None where there is nothing but the config.
    """

    name: str
    config: Any
    tensors: tuple[Tensor, ...] | None
