"""Brings what a playbook mounts from its own directory: small files of this machine, to every node that lacks them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from sparkcluster.errors import StageError
from sparkcluster.facts.model import Facts
from sparkcluster.node.shared import WHOLE
from sparkcluster.runtime import Changer
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook_files import Beside
from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.copy import Progress
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.transfers import Copied, send_all


def find_missing(spec: Spec, facts: Mapping[str, Facts]) -> list[tuple[Beside, Staging]]:
    """What is beside the playbook and not on a node, with the nodes that lack it."""
    found = []
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
            found.append((each, Staging("files", each.source, (), lack, (), each.size_bytes)))
    return found


def stage(
    changer: Changer, facts: Mapping[str, Facts], beside: Beside, staging: Staging, progress: Progress
) -> list[Copied]:
    """Send ``beside`` to the nodes that lack it; it counts as there once its last file is.

    Raises:
        StageError: it cannot be read, or did not reach a node.
        LeaseLost: a node has a newer epoch.
    """

    def files(node: str) -> Iterator[tuple[Path | bytes, Request]]:
        root = beside.folder(facts[node].state_dir)
        for member in beside.members:
            yield member.local, {"root": root, "path": member.path, "sha256": member.sha256}
        yield b"", {"root": root, "path": WHOLE, "sha256": hashlib.sha256(b"").hexdigest()}

    return send_all(changer, staging, files, progress)
