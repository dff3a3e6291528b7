"""What a copy of an image leaves out, and the record of which files it has."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Sequence
from typing import Any

from sparkcluster.node import common, docker
from sparkcluster.node.image_layers import record_path
from sparkcluster.node.machine import Machine

_RECORDS = 64


def dropped(have: Sequence[str | None], names: Sequence[tuple[str | None, int]]) -> frozenset[str]:
    """Digests of the files that receivers need not get.

    Args:
        have: of each layer, the digest of the file that all receivers have, empty if they have the layer whatever its
            file is called; None if one of them lacks it.
        names: what ``files`` found at the sender.
    """
    if len(have) != len(names):
        return frozenset()
    going, staying = set(), set()
    for place, (name, _) in enumerate(names):
        wanted = have[place]
        if wanted is not None and (name or wanted) and wanted in ("", name or wanted):
            going.add(name or wanted)
        else:
            staying.add(name)
    return frozenset(digest for digest in going - staying if digest)


def engine(machine: Machine) -> dict[str, Any]:
    """Version and store of the engine.

    Raises:
        Unreadable: it does not answer.
    """
    info = machine.docker_document("/info") or {}
    return {"version": info.get("ServerVersion") or "", "containerd_store": docker.in_containerd(info)}


def record(request: dict[str, Any], image_id: str, found: Sequence[Sequence[Any]]) -> None:
    """Note the files of an image's layers, each a digest and its bytes; nothing where it is not known of each.

    Without the record the next copy takes longer.
    """
    path = record_path(request["state_dir"])
    if len(found) != len(request["layers"]):
        return
    entries = [[diff, *found[place]] for place, diff in enumerate(request["layers"])]
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".lock", "w") as lock:  # two images may arrive at once
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept: dict[str, Any] = common.read_json(path)
            kept.pop(image_id, None)
            for oldest in list(kept)[: max(0, len(kept) - _RECORDS + 1)]:
                del kept[oldest]
            kept[image_id] = {"reference": request["reference"], "cluster": request["cluster"], "layers": entries}
            common.write_atomically(path, json.dumps(kept).encode())
