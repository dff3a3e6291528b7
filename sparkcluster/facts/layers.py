"""Finds the layers of an image that need not be copied, since the receivers have them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sparkcluster.facts.base import read
from sparkcluster.facts.docker import Image, Layers
from sparkcluster.facts.model import Facts


def shared(image: Image, receivers: Sequence[Facts]) -> dict[str, str]:
    """Layers of ``image`` (diff IDs) that all ``receivers`` have, in the format of ``node.image_files``.

    The value is the SHA-256 of the layer's file, as containerd's store needs it; empty if all receivers have the layer
    in Docker's own store, which identifies it by content.
    """
    common = dict.fromkeys(image.layers, "")
    for receiver in receivers:
        there = _there(image, receiver)
        common = {
            diff: digest or there[diff]
            for diff, digest in common.items()
            if diff in there and (not digest or there[diff] in {"", digest})
        }
    return common


def _there(image: Image, receiver: Facts) -> dict[str, str]:
    layers, other, engine = read(receiver.layers) or Layers(), read(receiver.image), read(receiver.docker)
    if engine is not None and engine.containerd_store:
        return {each.layer: each.digest for each in layers.blobs if each.digest is not None}
    prefix = 0
    for chain in (*layers.chains, other.layers if other is not None else ()):
        same = [one == another for one, another in zip(chain, image.layers, strict=False)]
        prefix = max(prefix, [*same, False].index(False))
    return dict.fromkeys(set(image.layers[:prefix]) - set(image.layers[prefix:]), "")


def left_out_bytes(image: Image, source: Facts, receivers: Sequence[Facts]) -> int:
    """Bytes of the layers of ``image`` that ``source`` skips, as far as their sizes are known before it is saved.

    All ``receivers`` get the same layers.
    """
    have, files = shared(image, receivers), (read(source.layers) or Layers()).files
    known = {each.digest: each.bytes for receiver in receivers for each in (read(receiver.layers) or Layers()).blobs}
    sizes = {
        diff: file.bytes or known.get(have[diff], 0)
        for diff, file in zip(image.layers, files, strict=False)
        if diff in have and (file.digest is None or have[diff] in {"", file.digest})
    }
    return sum(sizes.values()) if receivers else 0
