"""Checks of free disk space on each node."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from sparkcluster import engines
from sparkcluster.checks.check import Context, Seen, node_check
from sparkcluster.facts.base import read
from sparkcluster.facts.engine import expected_images, image_room_bytes
from sparkcluster.facts.layers import left_out_bytes
from sparkcluster.facts.model import Disk, Facts
from sparkcluster.facts.weights import Weights
from sparkcluster.findings import Remedy, edit, here, on_node
from sparkcluster.fit import shipped
from sparkcluster.fit.source import spark
from sparkcluster.printable import shell
from sparkcluster.report import share, size
from sparkcluster.spec import Playbook

# A launch writes logs, records and layers; with less than this the next write may fail.
DISK_FLOOR_BYTES = 10**9
# Images for arm64 have 18 to 24 GB, and Docker keeps the archive in addition to the layers while it loads.
IMAGE_SPACE_BYTES = 25 * 10**9

PRUNE = here("sparkcluster models INVENTORY --prune", "removes staged weights that nothing uses")
PRUNE_IMAGES = on_node("docker image prune")


@node_check(
    "HOST-005",
    "The disks are not full",
    needs=("disks",),
    remedy=(PRUNE, PRUNE_IMAGES, "find other large files with du"),
)
def disks(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """A full disk leaves incomplete images or truncated records."""
    full = [
        disk
        for disk in read(facts.disks) or ()
        if disk.free_bytes < DISK_FLOOR_BYTES and (context.docker or disk.purpose != "docker")
    ]
    # Report paths on the same file system once.
    for size_, disk in {(disk.total_bytes, disk.free_bytes): disk for disk in reversed(full)}.items():
        has_weights = any((each.total_bytes, each.free_bytes) == size_ for each in full if each.purpose == "hf_home")
        where = f"{shell('df --output=target', disk.path)} | tail -n 1"
        largest = on_node(f"{where} | xargs -I@ sudo du -xhd3 @ | sort -h | tail")
        yield Seen(
            f"the disk of {disk.path} on {name} is full",
            f"{share(disk.free_bytes, disk.total_bytes)} are free",
            (*([PRUNE] if has_weights else []), PRUNE_IMAGES, largest),
        )


@node_check(
    "HOST-028",
    "There is space for the missing image and weights",
    needs=("disks",),
    source="practitioners' reports: downloads that fail at 97 %",
    remedy=(PRUNE, PRUNE_IMAGES, edit("set hf_home in the inventory, or data-root in daemon.json, to a larger disk")),
)
def space(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """Staging fails after minutes of copying.

    Docker keeps the archive in addition to the layers until all are unpacked. containerd's image store reports the size
    of compressed layers, about a third. Layers that all nodes without the image have from other images are not copied.
    If no node has the image, 25 GB are assumed. The size of the weights is taken from another node, or else from the
    data that `fit` has on the model; an estimate gives a warning. If `model.path` is on another disk, only staging
    checks it. A full disk is HOST-005.
    """
    image, weights = _image(context, facts), _weights(context, facts)
    by_disk: dict[tuple[int, int], list[_Missing]] = {}  # equal sizes mean the same file system
    for each in filter(None, (weights, image)):
        by_disk.setdefault((each.disk.total_bytes, each.disk.free_bytes), []).append(each)
    for missing in by_disk.values():
        disk = missing[0].disk
        if not DISK_FLOOR_BYTES <= disk.free_bytes < sum(each.needed for each in missing):
            continue
        sizes = " and ".join(
            size(each.needed) if each.least == each.needed else f"about {size(each.needed)} (an estimate)"
            for each in missing
        )
        remedy: list[Remedy] = [PRUNE] if weights in missing else []
        remedy += [PRUNE_IMAGES] if image in missing else []
        if weights in missing:
            remedy += [on_node(f"{shell('du -sh', disk.path)}/hub/* | sort -h")]
            remedy += [edit("set hf_home in the inventory to a larger disk")]
        else:
            remedy += [on_node(shell("df -h", disk.path)), edit("move data-root in /etc/docker/daemon.json")]
        yield Seen(
            f"{name} has no space for the {' and the '.join(each.what for each in missing)}",
            f"{size(disk.free_bytes)} free at {disk.path}, {sizes} needed",
            remedy,
            severity="error" if disk.free_bytes < sum(each.least for each in missing) else "warning",
        )


def recorded_forecast(playbook: Playbook, nodes: int = 1) -> Mapping[str, Any] | None:
    """Forecast of `fit` for a playbook from recorded data of its model; None without such data."""
    found = shipped.recorded(playbook.model.label, playbook.model.revision)
    if found is None or found.config is None:
        return None
    return engines.engine(playbook.engine).forecast(playbook, found, spark(), nodes=nodes)


@dataclasses.dataclass(frozen=True, slots=True)
class _Missing:
    """Data to copy to a node; ``needed`` and ``least`` bytes differ if the size is an estimate."""

    what: str
    disk: Disk
    needed: int
    least: int


def _image(context: Context, facts: Facts) -> _Missing | None:
    image, disk = context.spec.reference, _disk(facts, "docker")
    if not context.docker or facts.image is not None or disk is None or image is None:
        return None
    having = expected_images(context.spec, context.facts, context.topology.by_rank or list(context.facts))
    lacking = [each for node, each in context.facts.items() if node not in having]
    rooms = [
        image_room_bytes(source := context.facts[node], present, left_out_bytes(present, source, lacking))
        for node, present in having.items()
    ]
    return _Missing(f"image {image}", disk, max(rooms, default=IMAGE_SPACE_BYTES), max(rooms, default=0))


def _weights(context: Context, facts: Facts) -> _Missing | None:
    weights, disk, playbook = facts.weights, _disk(facts, "hf_home"), context.spec.playbook
    if playbook.model.id is None or disk is None or not isinstance(weights, Weights) or weights.complete:
        return None
    every = [other.weights for other in context.facts.values() if isinstance(other.weights, Weights)]
    whole = least = max((each.size_bytes for each in every if each.complete), default=0)
    if not whole and (forecast := recorded_forecast(playbook)) is not None:
        memory = forecast["memory"]
        whole = memory["checkpoint_bytes"]
        least = whole if memory["weights_counted"] else whole * 9 // 10  # by config.json alone
    present = weights.size_bytes
    return _Missing(f"weights of {playbook.model.label}", disk, whole - present, least - present) if whole else None


def _disk(facts: Facts, purpose: str) -> Disk | None:
    return next((disk for disk in read(facts.disks) or () if disk.purpose == purpose), None)
