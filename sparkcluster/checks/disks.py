"""Checks of free disk space on each node."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import Context, Seen, check, container_check, node_check
from sparkcluster.facts.model import Disk, Facts, Image, Weights, read

# A launch writes logs, records and layers; with less than this the next write may fail.
DISK_FLOOR_BYTES = 10**9
# The images for arm64 are 18 to 24 GB, and Docker keeps the archive beside the layers while it loads one.
IMAGE_SPACE_BYTES = 25 * 10**9


@node_check(
    "HOST-005",
    "The disks are not full",
    needs=("disks",),
    remedy="docker image prune; df -h",
)
def disks(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """A full disk leaves half an image or a truncated record."""
    full = [
        disk
        for disk in read(facts.disks) or ()
        if disk.free_bytes < DISK_FLOOR_BYTES and (context.docker or disk.purpose != "docker")
    ]
    # Paths on the same file system are one full disk.
    for disk in {(disk.total_bytes, disk.free_bytes): disk for disk in reversed(full)}.values():
        yield Seen(
            f"the disk of {disk.path} on {name} is full",
            f"{disk.free_bytes / 1e9:.2f} GB of {disk.total_bytes / 1e9:.0f} GB are free",
            (f"df -h {disk.path}", "docker image prune"),
        )


@container_check(
    "HOST-028",
    "There is space for an image that is missing",
    needs=("disks",),
    remedy="docker image prune, or move data-root to a larger disk",
)
def image_space(context: Context) -> Iterator[Seen]:
    """Staging fails in the middle of the image, after minutes of copying.

    Docker needs twice the size of the image: it keeps the archive beside the layers until the last one is unpacked.
    If no node has the image, its size is unknown; images for arm64 are 18 to 24 GB.
    """
    present = [facts.image for facts in context.facts.values() if isinstance(facts.image, Image)]
    size = max((image.size_bytes for image in present), default=None)
    for name, facts in context.facts.items():
        disk = _disk(facts, "docker")
        if facts.image is not None or disk is None or context.spec.playbook.image is None:
            continue
        needed = IMAGE_SPACE_BYTES if size is None else 2 * size
        if DISK_FLOOR_BYTES <= disk.free_bytes < needed:
            about = "about " if size is None else ""
            yield Seen(
                f"{name} has no space for the image {context.spec.playbook.image}",
                f"{disk.free_bytes / 1e9:.1f} GB free at {disk.path}, {about}{needed / 1e9:.1f} GB needed",
                ("docker image prune", f"df -h {disk.path}", "move data-root in /etc/docker/daemon.json"),
                severity="warning" if size is None else "error",
                node=name,
            )


@check(
    "HOST-029",
    "There is space for weights that are missing",
    needs=("disks",),
    source="practitioners' reports: downloads that fail at 97 %",
    remedy="remove unused models, or set hf_home to a larger disk",
)
def weights_space(context: Context) -> Iterator[Seen]:
    """Staging fails in the middle of the weights, after minutes of copying.

    Checked if one node has the complete weights. If they are in a directory of the user, the facts do not include its
    disk, and staging checks it.
    """
    if context.spec.playbook.model.id is None:
        return
    every = [facts.weights for facts in context.facts.values() if isinstance(facts.weights, Weights)]
    size = max((weights.size_bytes for weights in every if weights.complete), default=None)
    for name, facts in context.facts.items():
        weights, disk = facts.weights, _disk(facts, "hf_home")
        if size is None or disk is None or not isinstance(weights, Weights) or weights.complete:
            continue
        needed = size - weights.size_bytes
        if DISK_FLOOR_BYTES <= disk.free_bytes < needed:
            yield Seen(
                f"{name} has no space for the weights of {context.spec.playbook.model.label}",
                f"{disk.free_bytes / 1e9:.1f} GB free at {disk.path}, {needed / 1e9:.1f} GB needed",
                (f"du -sh {disk.path}/hub/* | sort -h", "set hf_home in the inventory to a larger disk"),
                node=name,
            )


def _disk(facts: Facts, purpose: str) -> Disk | None:
    return next((disk for disk in read(facts.disks) or () if disk.purpose == purpose), None)
