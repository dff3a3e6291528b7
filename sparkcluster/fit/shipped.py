"""Models as they were recorded: what ``fit`` answers from where the hub cannot be reached.

``recorded/OWNER--NAME.json`` has of one repository its config.json as far as ``fit`` reads it, the size or the tensors
of its weights where they are known, and where each was found; or, under ``missing``, why there is nothing yet.
``scripts/record-model`` writes these files from the hub.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from sparkcluster.fit.safetensors import Tensor
from sparkcluster.fit.source import Source

DIRECTORY = Path(__file__).with_name("recorded")

COMMIT = re.compile("[0-9a-f]{40}")


def recorded(repository: str, revision: str = "main", directory: Path = DIRECTORY) -> Source | None:
    """What is recorded of ``repository``, or of a directory as a playbook names it.

    Its ``config`` is None where nothing but the name is recorded; ``note`` says why.

    Returns:
        None if it was never recorded, or at another commit than ``revision``.
    """
    path = directory / file_name(repository)
    if not path.is_file():
        return None
    document = json.loads(path.read_text(encoding="utf-8"))
    commit = document.get("revision")
    if commit not in {None, revision} and COMMIT.fullmatch(revision):
        return None
    tensors = document.get("tensors")
    if tensors is not None:
        tensors = tuple(Tensor(name, dtype, tuple(shape), size) for name, dtype, shape, size in tensors)
    return Source(
        repository,
        document.get("config"),
        tensors,
        document.get("size_bytes"),
        commit,
        recorded=tuple(document.get("source", ())),
        note=document.get("missing", ""),
    )


def file_name(repository: str) -> str:
    """The file of ``repository``, or of a directory as a playbook names it."""
    return f"{repository.lstrip('~/.').replace('/', '--')}.json"
