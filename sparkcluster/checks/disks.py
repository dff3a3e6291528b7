"""Checks of the room on each node's disks."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.facts.model import Disk, Facts, Image, Weights, read

# Logs, records and layers of a launch need room; below this the next write may be the one that fails.
DISK_FLOOR_BYTES = 10**9
# vLLM's images for arm64 are 18 to 24 GB, and Docker keeps the archive beside the layers while it loads one.
IMAGE_ROOM_BYTES = 25 * 10**9


@check(
    "HOST-005",
    "There is room on the disks",
    needs=("disks",),
    source="eugr/spark-vllm-docker #339",
    remedy="docker image prune; df -h",
)
def disks(context: Context) -> Iterator[Seen]:
    """Half an image, or a record cut short, is what a full disk leaves."""
    for name, facts in context.facts.items():
        full = [
            disk
            for disk in read(facts.disks) or ()
            if disk.free_bytes < DISK_FLOOR_BYTES and (context.docker or disk.purpose != "docker")
        ]
        # Where all lie on one file system, it is one disk that is full.
        for disk in {(one.total_bytes, one.free_bytes): one for one in reversed(full)}.values():
            yield Seen(
                name,
                f"the disk of {disk.path} on {name} is full",
                f"{disk.free_bytes / 1e9:.2f} GB of {disk.total_bytes / 1e9:.0f} GB are free",
                (f"df -h {disk.path}", "docker image prune"),
            )


@check(
    "HOST-028",
    "There is room for the image where it is missing",
    needs=("disks",),
    scope="container",
    source="eugr/spark-vllm-docker #339",
    remedy="docker image prune, or data-root on a larger disk",
)
def image_room(context: Context) -> Iterator[Seen]:
    """Staging stops in the middle of the image, after minutes of copying.

    Docker needs its size twice: the archive lies beside the layers until the last one is unpacked. Where no node
    has the image its size is not known; vLLM's own for arm64 are 18 to 24 GB.
    """
    there = [facts.image for facts in context.facts.values() if isinstance(facts.image, Image)]
    known = max((2 * image.size_bytes for image in there), default=None)
    for name, facts in context.facts.items():
        disk = _disk(facts, "docker")
        if facts.image is not None or disk is None or context.spec.playbook.image is None:
            continue
        needed = IMAGE_ROOM_BYTES if known is None else known
        if DISK_FLOOR_BYTES <= disk.free_bytes < needed:
            about = "about " if known is None else ""
            yield Seen(
                name,
                f"{name} has no room for the image {context.spec.playbook.image}",
                f"{disk.free_bytes / 1e9:.1f} GB free at {disk.path}, {about}{needed / 1e9:.1f} GB wanted",
                ("docker image prune", f"df -h {disk.path}", "move data-root in /etc/docker/daemon.json"),
                severity="warning" if known is None else "error",
            )


@check(
    "HOST-029",
    "There is room for the weights where they are missing",
    needs=("disks",),
    source="practitioners' reports: downloads that end at 97 %",
    remedy="remove models that are not used, or set hf_home to a larger disk",
)
def weights_room(context: Context) -> Iterator[Seen]:
    """Staging stops in the middle of the weights, after minutes of copying.

    Known where one node has them whole. Of a directory of the user's own the facts do not say on which disk it
    lies; the copy looks for itself.
    """
    if context.spec.playbook.model.id is None:
        return
    every = [facts.weights for facts in context.facts.values() if isinstance(facts.weights, Weights)]
    size = max((one.size_bytes for one in every if one.complete), default=None)
    for name, facts in context.facts.items():
        own, disk = facts.weights, _disk(facts, "hf_home")
        if size is None or disk is None or not isinstance(own, Weights) or own.complete:
            continue
        needed = size - own.size_bytes
        if DISK_FLOOR_BYTES <= disk.free_bytes < needed:
            yield Seen(
                name,
                f"{name} has no room for the weights of {context.spec.playbook.model.label}",
                f"{disk.free_bytes / 1e9:.1f} GB free at {disk.path}, {needed / 1e9:.1f} GB wanted",
                (f"du -sh {disk.path}/hub/* | sort -h", "set hf_home in the inventory to a larger disk"),
            )


def _disk(facts: Facts, purpose: str) -> Disk | None:
    return next((disk for disk in read(facts.disks) or () if disk.purpose == purpose), None)
