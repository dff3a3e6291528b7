"""Recorded models, from which ``fit`` answers without the hub.

``recorded/OWNER--NAME.json`` has the parts of a repository's config.json that ``fit`` reads, the size or tensors of its
weights if known, and their sources; or, under ``missing``, why there is no data. ``scripts/record-model`` writes these
files from the hub.
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
    """Recorded data of ``repository``, or of a directory named in a playbook.

    Its ``config`` is None if only the name is recorded; ``note`` gives the reason.

    Returns:
        None if it is not recorded, or at another commit than ``revision``.
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
    """The file name for ``repository``, or for a directory named in a playbook."""
    return f"{repository.lstrip('~/.').replace('/', '--')}.json"
