"""Models as they were recorded: what ``fit`` answers from where the hub cannot be reached.

``recorded/OWNER--NAME.json`` has of one repository its config.json as far as ``fit`` reads it, the size or the tensors
of its weights where they are known, and where each was found; or, under ``missing``, why there is nothing yet.
``scripts/record-model`` writes these files from the hub.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sparkcluster.fit.safetensors import Tensor
from sparkcluster.fit.source import Source

DIRECTORY = Path(__file__).with_name("recorded")

_NUMBERS = re.compile(r"(?<=\.)\d+(?=\.)")
_COMMIT = re.compile("[0-9a-f]{40}")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """A model as it was recorded.

    Attributes:
        repository: its name, or a directory as a playbook names it.
        model: None where nothing but its name is recorded.
        revision: commit that was recorded; None where its source names none.
        found: where config and sizes were found.
        missing: why there is no ``model``.
    """

    repository: str
    model: Source | None
    revision: str | None = None
    found: tuple[str, ...] = ()
    missing: str = ""

    def is_of(self, revision: str) -> bool:
        """Whether it may be of ``revision``, a commit, branch or tag; what names no commit may be of any."""
        return self.revision in {None, revision} or _COMMIT.fullmatch(revision) is None


def recorded(repository: str, directory: Path = DIRECTORY) -> Recorded | None:
    """What is recorded of ``repository``; None if it was never recorded."""
    path = directory / file_name(repository)
    if not path.is_file():
        return None
    document = json.loads(path.read_text(encoding="utf-8"))
    if "config" not in document:
        return Recorded(repository, None, missing=document["missing"])
    tensors = document.get("tensors")
    known = (
        None
        if tensors is None
        else tuple(Tensor(name, dtype, tuple(shape), size) for name, dtype, shape, size in tensors)
    )
    model = Source(repository, document["config"], known, document.get("size_bytes"), document.get("revision"))
    return Recorded(repository, model, model.revision, tuple(document["source"]))


def file_name(repository: str) -> str:
    """The file of ``repository``, or of a directory as a playbook names it."""
    return f"{repository.lstrip('~/.').replace('/', '--')}.json"


def document(model: Source, found: str) -> dict[str, Any]:
    """What is to be recorded of ``model``, which was read at the address ``found``."""
    revision = {} if model.revision is None else {"revision": model.revision}
    made = {"repository": model.name, "source": [found], **revision, "config": model.config}
    if model.tensors is not None:
        depth = _layers(model.config)
        made["tensors"] = [
            [each.name, each.dtype, list(each.shape), each.size_bytes] for each in alike(model.tensors, depth)
        ]
    return made


def alike(tensors: Iterable[Tensor], layers: int) -> list[Tensor]:
    """``tensors`` with all that differ in nothing but their layer or expert as one, of their common size.

    Those of layers from number ``layers`` on, which only speculative decoding loads, stay apart.
    """
    groups: dict[tuple[object, ...], Tensor] = {}
    for tensor in tensors:
        layer = _LAYER.search(tensor.name)
        drafts = layer is not None and int(layer[1]) >= layers
        key = (_NUMBERS.sub("*", tensor.name), tensor.dtype, tensor.shape, drafts)
        first = groups.setdefault(key, dataclasses.replace(tensor, size_bytes=0))
        groups[key] = dataclasses.replace(first, size_bytes=first.size_bytes + tensor.size_bytes)
    return list(groups.values())


def _layers(config: Any) -> int:
    """The number of layers that a config.json names; large where it names none."""
    for part in (config, *(config.get(key) for key in ("text_config", "llm_config", "language_config"))):
        if isinstance(part, Mapping) and type(part.get("num_hidden_layers")) is int:
            return int(part["num_hidden_layers"])
    return 1 << 20
