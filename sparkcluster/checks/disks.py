"""Checks of free disk space on each node."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkcluster import engines
from sparkcluster.checks.registry import Context, Seen, container_node_check, node_check
from sparkcluster.facts.base import read
from sparkcluster.facts.engine import image_room_bytes
from sparkcluster.facts.layers import left_out_bytes
from sparkcluster.facts.model import Disk, Facts
from sparkcluster.facts.weights import Weights
from sparkcluster.findings import Severity
from sparkcluster.fit import shipped
from sparkcluster.fit.source import spark
from sparkcluster.printable import shell
from sparkcluster.report import share, size
from sparkcluster.spec import Playbook

# A launch writes logs, records and layers; with less than this the next write may fail.
DISK_FLOOR_BYTES = 10**9
# The images for arm64 are 18 to 24 GB, and Docker keeps the archive beside the layers while it loads one.
IMAGE_SPACE_BYTES = 25 * 10**9

PRUNE = "sparkcluster models INVENTORY --prune   removes staged weights that nothing uses"


@node_check(
    "HOST-005",
    "The disks are not full",
    needs=("disks",),
    remedy="sparkcluster models INVENTORY --prune; docker image prune; du, for what else fills it",
)
def disks(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """A full disk leaves half an image or a truncated record."""
    full = [
        disk
        for disk in read(facts.disks) or ()
        if disk.free_bytes < DISK_FLOOR_BYTES and (context.docker or disk.purpose != "docker")
    ]
    # Paths on the same file system are one full disk.
    for size_, disk in {(disk.total_bytes, disk.free_bytes): disk for disk in reversed(full)}.items():
        has_weights = any((each.total_bytes, each.free_bytes) == size_ for each in full if each.purpose == "hf_home")
        where = f"{shell('df --output=target', disk.path)} | tail -n 1"
        yield Seen(
            f"the disk of {disk.path} on {name} is full",
            f"{share(disk.free_bytes, disk.total_bytes)} are free",
            (
                *([PRUNE] if has_weights else []),
                f"on {name}: docker image prune",
                f"on {name}: {where} | xargs -I@ sudo du -xhd3 @ | sort -h | tail",
            ),
        )


@container_node_check(
    "HOST-028",
    "There is space for an image that is missing",
    needs=("disks",),
    remedy="docker image prune, or move data-root to a larger disk",
)
def image_space(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """Staging fails in the middle of the image, after minutes of copying.

    Docker keeps the archive beside the layers until the last one is unpacked. containerd's image store reports the size
    of compressed layers, which are about a third. Layers that another image on the node has are not copied. If no node
    has the image, 25 GB are assumed. Where weights are missing on the same disk, HOST-029 counts both.
    """
    image, weights = _image(context, facts), _weights(context, facts)
    if image is not None and not _share_a_disk(image, weights):
        remedy = ("docker image prune", shell("df -h", image.disk.path), "move data-root in /etc/docker/daemon.json")
        yield from _space(name, [image], remedy)


@node_check(
    "HOST-029",
    "There is space for weights that are missing",
    needs=("disks",),
    source="practitioners' reports: downloads that fail at 97 %",
    remedy="sparkcluster models INVENTORY --prune, or set hf_home to a larger disk",
)
def weights_space(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """Staging fails in the middle of the weights, after minutes of copying.

    Their size is that of the weights on another node, or else what is recorded of the model, as `fit` counts it. An
    image that is missing on the same disk is added. If they are in a directory of the user, the facts do not include
    its disk, and staging checks it.
    """
    image, weights = _image(context, facts), _weights(context, facts)
    if weights is not None:
        both = [weights, image] if image is not None and _share_a_disk(image, weights) else [weights]
        look = f"{shell('du -sh', weights.disk.path)}/hub/* | sort -h"
        images = ["docker image prune"] if len(both) > 1 else []
        yield from _space(name, both, (PRUNE, *images, look, "set hf_home in the inventory to a larger disk"))


def recorded_forecast(playbook: Playbook, nodes: int = 1) -> Mapping[str, Any] | None:
    """What `fit` says of a playbook by what is recorded of its model; None where nothing is."""
    found = shipped.recorded(playbook.model.label)
    if found is None or found.model is None or not found.is_of(playbook.model.revision):
        return None
    return engines.engine(playbook.engine).forecast(playbook, found.model, spark(), nodes=nodes)


@dataclasses.dataclass(frozen=True, slots=True)
class _Missing:
    """What has to be copied to a node: bytes that it probably needs, and at least; they differ for an estimate."""

    what: str
    disk: Disk
    needed: int
    least: int


def _image(context: Context, facts: Facts) -> _Missing | None:
    image, disk = context.spec.reference, _disk(facts, "docker")
    if not context.docker or facts.image is not None or disk is None or image is None:
        return None
    rooms = [
        image_room_bytes(source := context.facts[node], present, left_out_bytes(present, source, [facts]))
        for node, present in context.images()
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


def _share_a_disk(image: _Missing | None, weights: _Missing | None) -> bool:
    """Whether both go to one file system, as far as its size tells."""
    if image is None or weights is None:
        return False
    one, other = image.disk, weights.disk
    return (one.total_bytes, one.free_bytes) == (other.total_bytes, other.free_bytes)


def _space(name: str, missing: Sequence[_Missing], remedy: tuple[str, ...]) -> Iterator[Seen]:
    """That the disk has fewer free bytes than all ``missing`` need; a full one is HOST-005."""
    disk = missing[0].disk
    if DISK_FLOOR_BYTES <= disk.free_bytes < sum(each.needed for each in missing):
        sizes = " and ".join(
            size(each.needed) if each.least == each.needed else f"about {size(each.needed)} (an estimate)"
            for each in missing
        )
        severity: Severity = "error" if disk.free_bytes < sum(each.least for each in missing) else "warning"
        what = " and the ".join(each.what for each in missing)
        seen = f"{size(disk.free_bytes)} free at {disk.path}, {sizes} needed"
        yield Seen(f"{name} has no space for the {what}", seen, remedy, severity=severity)


def _disk(facts: Facts, purpose: str) -> Disk | None:
    return next((disk for disk in read(facts.disks) or () if disk.purpose == purpose), None)
