"""Models as they were recorded: what ``fit`` answers from where the hub cannot be reached.

``recorded/OWNER--NAME.json`` has of one repository its config.json as far as ``fit`` reads it, the size or the tensors
of its weights where they are known, and where each was found; or, under ``missing``, why there is nothing yet.
``scripts/record-model`` writes these files from the hub.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

from sparkcluster.fit.safetensors import Tensor
from sparkcluster.fit.source import Source

DIRECTORY = Path(__file__).with_name("recorded")

_COMMIT = re.compile("[0-9a-f]{40}")


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """A model as it was recorded.

    Attributes:
        repository: its name, or a directory as a playbook names it.
        model: None where nothing but its name is recorded.
        found: where config and sizes were found.
        missing: why there is no ``model``.
    """

    repository: str
    model: Source | None
    found: tuple[str, ...] = ()
    missing: str = ""

    @property
    def revision(self) -> str | None:
        """Commit that was recorded; None where its source names none."""
        return self.model.revision if self.model is not None else None

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
    return Recorded(repository, model, tuple(document["source"]))


def file_name(repository: str) -> str:
    """The file of ``repository``, or of a directory as a playbook names it."""
    return f"{repository.lstrip('~/.').replace('/', '--')}.json"
