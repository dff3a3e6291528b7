"""Brings vocabularies that an engine would download when it starts: fetched here once, and sent to every node."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sparkcluster.engines.base import Vocabulary
from sparkcluster.errors import StageError
from sparkcluster.facts.model import Facts
from sparkcluster.runtime import Changer
from sparkcluster.spec import Spec
from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.copy import Progress
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.ray_archive import cache_directory
from sparkcluster.staging.transfers import Copied, send_all
from sparkcluster.topology import vocabularies

_TIMEOUT_S = 30


def find_missing(spec: Spec, facts: Mapping[str, Facts]) -> list[tuple[Vocabulary, Staging]]:
    """Each vocabulary that a node lacks, with the nodes that lack it."""
    nodes: dict[Vocabulary, list[str]] = {}
    for name, found in facts.items():
        for each in vocabularies.lacking(spec, found):
            nodes.setdefault(each, []).append(name)
    return [
        (each, Staging("vocabulary", each.name, (), tuple((name, "missing") for name in names), (), each.size_bytes))
        for each, names in nodes.items()
    ]


def stage(
    changer: Changer, facts: Mapping[str, Facts], vocabulary: Vocabulary, staging: Staging, progress: Progress
) -> list[Copied]:
    """Send ``vocabulary`` to the nodes that lack it.

    Raises:
        StageError: it cannot be fetched, or did not reach a node.
        LeaseLost: a node has a newer epoch.
    """
    path = fetched(vocabulary)

    def files(node: str) -> list[tuple[Path | bytes, Request]]:
        folder = vocabularies.folder(facts[node].state_dir, vocabulary)
        return [(path, {"root": folder, "path": vocabulary.name, "sha256": vocabulary.sha256})]

    return send_all(changer, staging, files, progress)


def fetched(vocabulary: Vocabulary) -> Path:
    """The file in the cache of this machine; downloaded unless it is there with the right hash.

    Raises:
        StageError: it cannot be downloaded, or is another file.
    """
    path = cache_directory() / "vocabularies" / vocabularies.stored(vocabulary)
    try:
        if path.is_file() and _is(vocabulary, path.read_bytes()):
            return path
        content = _downloaded(vocabulary)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(partial).replace(path)
    except OSError as error:
        raise StageError(
            f"{vocabulary.name}, which the engine would download when it starts, cannot be fetched: {error}",
            step="copy vocabulary",
            hint=f"where there is a network: curl -O {vocabulary.url}; then copy it to {path} on this machine",
        ) from error
    return path


def _downloaded(vocabulary: Vocabulary) -> bytes:
    import http.client  # noqa: PLC0415 - slow, and few need it
    import urllib.request  # noqa: PLC0415

    try:
        with urllib.request.urlopen(vocabulary.url, timeout=_TIMEOUT_S) as response:  # noqa: S310 - the engine's
            content: bytes = response.read(vocabulary.size_bytes + 1)
    except http.client.HTTPException as error:
        raise OSError(f"{vocabulary.url}: {type(error).__name__}") from error
    if not _is(vocabulary, content):
        raise OSError(f"{vocabulary.url} has another SHA-256 than expected")
    return content


def _is(vocabulary: Vocabulary, content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == vocabulary.sha256
