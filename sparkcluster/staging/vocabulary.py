"""Brings vocabularies that an engine would download when it starts: fetched here once, and sent to every node."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from sparkcluster.engines.base import Vocabulary
from sparkcluster.errors import StageError, UsageError
from sparkcluster.facts.model import Facts
from sparkcluster.output_file import write
from sparkcluster.spec import Spec
from sparkcluster.staging.artifacts import Sending
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.ray_archive import cache_directory
from sparkcluster.topology import vocabularies

_TIMEOUT_S = 30


def find_missing(spec: Spec, facts: Mapping[str, Facts]) -> Iterator[Staging]:
    """Each vocabulary that nodes lack."""
    nodes: dict[Vocabulary, list[str]] = {}
    for name, found in facts.items():
        for each in vocabularies.lacking(spec, found):
            nodes.setdefault(each, []).append(name)
    for each, names in nodes.items():
        lack = tuple((name, "missing") for name in names)
        yield Staging("vocabulary", each.name, (), lack, (), each.size_bytes, spec=spec, files=partial(files, each))


def files(vocabulary: Vocabulary, state_dir: str) -> Iterator[Sending]:
    """The file of ``vocabulary``, for the node with ``state_dir``: from the cache of this machine, else downloaded.

    Raises:
        StageError: it cannot be downloaded, or is another file.
    """
    import http.client  # noqa: PLC0415 - slow, and few need it

    path = cache_directory() / "vocabularies" / vocabularies.stored(vocabulary)
    try:
        if not path.is_file() or not _is(vocabulary, path.read_bytes()):
            _download(vocabulary, path)
    except (OSError, http.client.HTTPException, UsageError) as error:
        raise StageError(
            f"{vocabulary.name}, which the engine would download when it starts, cannot be fetched: {error}",
            step="copy vocabulary",
            hint=f"where there is a network: curl -O {vocabulary.url}; then copy it to {path} on this machine",
        ) from error
    root = vocabularies.folder(state_dir, vocabulary)
    yield path, {"root": root, "path": vocabulary.name, "sha256": vocabulary.sha256}


def _download(vocabulary: Vocabulary, path: Path) -> None:
    import urllib.request  # noqa: PLC0415 - slow, and few need it

    with urllib.request.urlopen(vocabulary.url, timeout=_TIMEOUT_S) as response:  # noqa: S310 - the engine's
        content: bytes = response.read(vocabulary.size_bytes + 1)
    if not _is(vocabulary, content):
        raise OSError(f"{vocabulary.url} has another SHA-256 than expected")
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, lambda file: file.write(content))


def _is(vocabulary: Vocabulary, content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == vocabulary.sha256
