"""Brings what a playbook mounts from its own directory: small files of this machine, to every node that lacks them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial

from sparkcluster.errors import StageError
from sparkcluster.facts.model import Facts
from sparkcluster.node.shared import WHOLE
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook_files import Beside
from sparkcluster.staging.artifacts import Sending
from sparkcluster.staging.plan import Staging


def find_missing(spec: Spec, facts: Mapping[str, Facts]) -> Iterator[Staging]:
    """What is beside the playbook and not on nodes.

    Raises:
        StageError: it is of a release, and no longer here.
    """
    for each in spec.beside.values():
        lack = tuple((name, "missing") for name, node in facts.items() if each.mark not in node.files)
        if lack:
            if not each.members:
                raise StageError(
                    f"{each.source} is gone, which was beside the playbook of a release",
                    node=lack[0][0],
                    step="copy files",
                    hint="sparkcluster upgrade INVENTORY --playbook P   with the playbook and what is beside it",
                )
            yield Staging("files", each.source, (), lack, (), each.size_bytes, spec=spec, files=partial(files, each))


def files(beside: Beside, state_dir: str) -> Iterator[Sending]:
    """The files of ``beside``, for the node with ``state_dir``, where it counts as there once the last one is."""
    root = beside.folder(state_dir)
    for member in beside.members:
        yield member.local, {"root": root, "path": member.path, "sha256": member.sha256}
    yield b"", {"root": root, "path": WHOLE, "sha256": hashlib.sha256(b"").hexdigest()}
