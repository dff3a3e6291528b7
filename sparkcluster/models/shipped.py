"""Models of the bundled playbooks as they were recorded: what ``fit`` answers from where the hub cannot be reached.

``recorded/OWNER--NAME.json`` has of one repository the keys of its config.json that ``fit`` reads, the size or the
tensors of its weights where they were published, and where each was found. ``scripts/record-model`` writes them from
the hub.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkcluster.models.safetensors import Tensor
from sparkcluster.models.source import Source

DIRECTORY = Path(__file__).with_name("recorded")


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """A model as it was recorded.

    Attributes:
        revision: commit that was recorded; None where its source names none.
        found: where config and sizes were found.
    """

    model: Source
    revision: str | None
    found: tuple[str, ...]

    @property
    def config(self) -> Mapping[str, Any]:
        """Its config.json, as far as it was recorded."""
        return dict(self.model.config)

    @property
    def counted(self) -> bool:
        """Whether the size of its weights is known, and not only estimated from the config."""
        return self.model.tensors is not None or self.model.size_bytes is not None


def recorded(repository: str, directory: Path = DIRECTORY) -> Recorded | None:
    """What is recorded of ``repository``; None if nothing is."""
    path = directory / file_name(repository)
    if not path.is_file():
        return None
    document = json.loads(path.read_text(encoding="utf-8"))
    tensors = document.get("tensors")
    return Recorded(
        Source(
            repository,
            document["config"],
            None if tensors is None else tuple(map(_tensor, tensors)),
            document.get("size_bytes"),
        ),
        document.get("revision"),
        tuple(document["source"]),
    )


def file_name(repository: str) -> str:
    """The file of ``repository``."""
    return f"{repository.replace('/', '--')}.json"


def _tensor(fields: list[Any]) -> Tensor:
    """One tensor, or several alike as one of their common size."""
    name, dtype, shape, size = fields
    return Tensor(name, dtype, tuple(shape), size)
