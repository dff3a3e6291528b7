"""Brings what a playbook mounts from its own directory: small files of this machine, to every node that lacks them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping

from sparkcluster.errors import StageError
from sparkcluster.facts.model import Facts
from sparkcluster.node.shared import WHOLE
from sparkcluster.runtime import Changer
from sparkcluster.spec import Spec
from sparkcluster.spec.beside import Beside
from sparkcluster.staging.again import Step
from sparkcluster.staging.copy import Progress
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.send import send
from sparkcluster.staging.transfers import Copied

_STEP = "stage files"


def find_missing(spec: Spec, facts: Mapping[str, Facts]) -> list[tuple[Beside, Staging]]:
    """What is beside the playbook and not on a node, with the nodes that lack it."""
    found = []
    for each in spec.beside.values():
        lack = tuple((name, "missing") for name, node in facts.items() if each.mark not in node.files)
        if lack:
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
    step = Step(_STEP, changer.lease, lambda: False, changer.hold, patience_s=changer.patience_s, tell=progress)
    copied = []
    for node, _ in staging.missing:
        begin, sent = time.monotonic(), 0
        root = beside.folder(facts[node].state_dir)
        progress(node, f"{beside.source}, {beside.size_bytes / 1e6:.1f} MB from this machine")
        for member in beside.members:
            request = {"root": root, "path": member.path, "sha256": member.sha256}
            try:
                sent += send(step, changer.fleet[node], member.local, request)
            except OSError as error:
                raise StageError(f"{member.local} cannot be read: {error.strerror}", step=_STEP) from error
        mark = beside.mark.encode()
        whole = {"root": root, "path": WHOLE, "sha256": hashlib.sha256(mark).hexdigest()}
        send(step, changer.fleet[node], mark, whole)
        copied.append(Copied("files", node, "controller", sent, time.monotonic() - begin))
    return copied
