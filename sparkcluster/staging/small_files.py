"""Sends small local files to every node that lacks them.

These are the playbook files that a playbook mounts, and vocabularies that an engine would download when it starts,
which are downloaded once, on this machine.
"""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from sparkcluster.engines.base import Vocabulary
from sparkcluster.errors import StageError, UsageError
from sparkcluster.facts.model import Facts
from sparkcluster.node.shared import WHOLE
from sparkcluster.output_file import write
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook_files import FileSet
from sparkcluster.staging.artifacts import Sending
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.ray_archive import cache_directory
from sparkcluster.topology import vocabularies

_TIMEOUT_S = 30


def find_missing(spec: Spec, facts: Mapping[str, Facts]) -> Iterator[Staging]:
    """Find the small files that nodes lack.

    Raises:
        StageError: a file of a recorded release is no longer on this machine.
    """
    lacking = {name: vocabularies.lacking(spec, node) for name, node in facts.items()}
    for each in dict.fromkeys(itertools.chain.from_iterable(lacking.values())):
        lack = tuple((name, "missing") for name in facts if each in lacking[name])
        files = partial(of_vocabulary, each)
        yield Staging("vocabulary", each.name, (), lack, (), each.size_bytes, spec=spec, files=files)
    for mounted in spec.files.values():
        lack = tuple((name, "missing") for name, node in facts.items() if mounted.mark not in node.files)
        if lack and not mounted.members:
            raise StageError(
                f"{mounted.source} no longer exists, but the recorded playbook mounts it",
                node=lack[0][0],
                step="copy files",
                hint="sparkcluster upgrade INVENTORY --playbook P   with the playbook and its files",
            )
        if lack:
            sent = partial(of_playbook, mounted)
            yield Staging("files", mounted.source, (), lack, (), mounted.size_bytes, spec=spec, files=sent)


def of_playbook(mounted: FileSet, state_dir: str) -> Iterator[Sending]:
    """The playbook files ``mounted``, for the node with ``state_dir``; the last one marks them as complete."""
    root = mounted.folder(state_dir)
    for member in mounted.members:
        yield member.local, {"root": root, "path": member.path, "sha256": member.sha256}
    yield io.BytesIO(), {"root": root, "path": WHOLE, "sha256": hashlib.sha256().hexdigest()}


def of_vocabulary(vocabulary: Vocabulary, state_dir: str) -> Iterator[Sending]:
    """The file of ``vocabulary``, for the node with ``state_dir``: from the local cache, else downloaded.

    Raises:
        StageError: it cannot be downloaded, or has another content.
    """
    import http.client  # noqa: PLC0415 - slow and rarely needed

    path = cache_directory() / "vocabularies" / vocabularies.stored(vocabulary)
    try:
        if not path.is_file() or not _is(vocabulary, path.read_bytes()):
            _download(vocabulary, path)
    except (OSError, http.client.HTTPException, UsageError) as error:
        raise StageError(
            f"cannot download {vocabulary.name}, which the engine needs to start: {error}",
            step="copy vocabulary",
            hint=f"on a machine with Internet access: curl -O {vocabulary.url}; then copy it to {path} on this machine",
        ) from error
    root = vocabularies.folder(state_dir, vocabulary)
    yield path, {"root": root, "path": vocabulary.name, "sha256": vocabulary.sha256}


def _download(vocabulary: Vocabulary, path: Path) -> None:
    import urllib.request  # noqa: PLC0415 - slow and rarely needed

    with urllib.request.urlopen(vocabulary.url, timeout=_TIMEOUT_S) as response:  # noqa: S310 - the engine's
        content: bytes = response.read(vocabulary.size_bytes + 1)
    if not _is(vocabulary, content):
        raise OSError(f"{vocabulary.url} has another SHA-256 than expected")
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, lambda file: file.write(content))


def _is(vocabulary: Vocabulary, content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == vocabulary.sha256
