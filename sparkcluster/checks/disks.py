"""Checks of free disk space on each node."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from sparkcluster.checks.registry import Context, Seen, container_node_check, node_check
from sparkcluster.facts.base import read
from sparkcluster.facts.engine import image_room_bytes
from sparkcluster.facts.layers import left_out_bytes
from sparkcluster.facts.model import Disk, Facts
from sparkcluster.facts.weights import Weights
from sparkcluster.report import share, size

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
        where = f"df --output=target {quote(disk.path)} | tail -n 1"
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
    has the image, its size is unknown; images for arm64 are 18 to 24 GB.
    """
    image, disk = context.spec.reference, _disk(facts, "docker")
    if facts.image is not None or disk is None or image is None:
        return
    rooms = [
        image_room_bytes(source := context.facts[node], present, left_out_bytes(present, source, [facts]))
        for node, present in context.images()
    ]
    room = max(rooms, default=None)
    yield from _space(
        f"{name} has no space for the image {image}",
        disk,
        IMAGE_SPACE_BYTES if room is None else room,
        ("docker image prune", f"df -h {quote(disk.path)}", "move data-root in /etc/docker/daemon.json"),
        certain=room is not None,
    )


@node_check(
    "HOST-029",
    "There is space for weights that are missing",
    needs=("disks",),
    source="practitioners' reports: downloads that fail at 97 %",
    remedy="sparkcluster models INVENTORY --prune, or set hf_home to a larger disk",
)
def weights_space(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """Staging fails in the middle of the weights, after minutes of copying.

    Checked if one node has the complete weights. If they are in a directory of the user, the facts do not include its
    disk, and staging checks it.
    """
    weights, disk = facts.weights, _disk(facts, "hf_home")
    every = [other.weights for other in context.facts.values() if isinstance(other.weights, Weights)]
    whole = max((weights.size_bytes for weights in every if weights.complete), default=None)
    if whole is None or disk is None or not isinstance(weights, Weights) or weights.complete:
        return
    if context.spec.playbook.model.id is not None:
        yield from _space(
            f"{name} has no space for the weights of {context.spec.playbook.model.label}",
            disk,
            whole - weights.size_bytes,
            (PRUNE, f"du -sh {quote(disk.path)}/hub/* | sort -h", "set hf_home in the inventory to a larger disk"),
        )


def _space(summary: str, disk: Disk, needed: int, remedy: tuple[str, ...], *, certain: bool = True) -> Iterator[Seen]:
    """That ``disk`` has fewer free bytes than ``needed``; a full one is HOST-005."""
    if DISK_FLOOR_BYTES <= disk.free_bytes < needed:
        about = "" if certain else "about "
        seen = f"{size(disk.free_bytes)} free at {disk.path}, {about}{size(needed)} needed"
        yield Seen(summary, seen, remedy, severity="error" if certain else "warning")


def _disk(facts: Facts, purpose: str) -> Disk | None:
    return next((disk for disk in read(facts.disks) or () if disk.purpose == purpose), None)
