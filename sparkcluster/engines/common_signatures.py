"""Signatures common to all engines: the rows of ``signatures.toml``, and functions that some rows use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sparkcluster.engines.base import Engine
from sparkcluster.engines.signature import Cause, Compute, Signature, signatures


def versions(_found: re.Match[str], lines: Sequence[str]) -> Cause:
    """The versions of Ray and Python that differ."""
    versions_seen = [match for line in lines if (match := re.search(r"\b(Ray|Python): ([\w.]+)", line))]
    parts = [f"{match[1]} {match[2]}" for match in versions_seen[-4:]]
    seen = f": the head has {' and '.join(parts[:2])}, this rank {' and '.join(parts[2:])}" if len(parts) == 4 else ""
    return Cause(
        f"Ray or Python differ between the ranks{seen}",
        "the nodes run different images: sparkcluster stage INVENTORY image",
    )


def actor(_found: re.Match[str], lines: Sequence[str]) -> Cause:
    """The node of the worker that died."""
    places = [
        match[1] for line in lines if (match := re.search(r"^\W{0,40}(?:\(.{0,200}\)\s{0,8})?ip: ([\d.]+)", line))
    ]
    where = f" on {places[-1]}" if places else ""
    return Cause(
        f"a worker process{where} died",
        "see its log and the kernel's: sparkcluster logs INVENTORY NODE, and sudo dmesg on that node",
    )


# Images for CUDA 13.0 run on series 580; 590 deadlocks while it captures CUDA graphs on a GB10 (seed: SM121 guide).
_NEWER_IMAGE_HINT = (
    "use an image for CUDA 13.0, which drivers of series 580 run, or one whose log says that forward compatibility is"
    " ENABLED; do not install driver 590 on a GB10"
)


def newer_image(found: re.Match[str], lines: Sequence[str]) -> Cause:
    """The driver that the image was built for, and the one that the node has."""
    wanted = next(
        (match[1] for line in lines if (match := re.search(r"NVIDIA Driver Release ([\d.]+)", line))), "newer"
    )
    return Cause(f"the image is built for NVIDIA driver {wanted}, and the node has {found[1]}", _NEWER_IMAGE_HINT)


def common(memory_hint: str) -> tuple[Signature, ...]:
    """The signatures common to all engines; ``memory_hint`` says what to do if memory ran out."""
    return signatures(_FILE, memory_hint=memory_hint, more=_MORE)


def beside_common(path: Path, memory_hint: str, *more: Compute) -> tuple[Signature, ...]:
    """The signatures at ``path`` and the common ones, root causes first; ``more`` are functions that rows name."""
    own = signatures(path, memory_hint=memory_hint, more={each.__name__: each for each in more})
    return tuple(sorted((*own, *common(memory_hint)), key=lambda each: each.consequence))


_FILE = Path(__file__).with_name("signatures.toml")
_MORE = {each.__name__: each for each in (versions, actor, newer_image)}

COMMON = common(Engine.memory_hint)
# The engine continues to serve after these, so they count only if nothing else explains why it ended.
TCP, NEWER_IMAGE = signatures(_FILE, "weak", more=_MORE)
