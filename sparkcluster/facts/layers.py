"""Which layers of an image need not be copied to a node, since images there have them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sparkcluster.facts.base import read
from sparkcluster.facts.docker import Image, Layers
from sparkcluster.facts.model import Facts


def shared(image: Image, receivers: Sequence[Facts]) -> dict[str, str]:
    """Layers of ``image`` (diff IDs) that all ``receivers`` have, as ``node.image_files`` takes them.

    Each with the SHA-256 of its file, which is what containerd's store knows; empty if all have the layer in an
    engine's own store, which takes it by its content.
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
    """Bytes of the layers that ``source`` leaves out of ``image``, as far as they are known before it is saved.

    All ``receivers`` get the same.
    """
    have, files = shared(image, receivers), (read(source.layers) or Layers()).files
    known = {each.digest: each.bytes for receiver in receivers for each in (read(receiver.layers) or Layers()).blobs}
    sizes = {
        diff: file.bytes or known.get(have[diff], 0)
        for diff, file in zip(image.layers, files, strict=False)
        if diff in have and (file.digest is None or have[diff] in {"", file.digest})
    }
    return sum(sizes.values()) if receivers else 0
