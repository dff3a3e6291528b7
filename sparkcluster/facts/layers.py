"""Which layers of an image need not be copied to a node, since images there have them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sparkcluster.facts.base import read
from sparkcluster.facts.docker import Image, Layers
from sparkcluster.facts.model import Facts


def shared(image: Image, receivers: Sequence[Facts]) -> list[str | None]:
    """Of each layer of ``image``, what all ``receivers`` have of it, as ``node.relay`` takes it.

    That is None where one of them lacks it; empty if all have the layer in an engine's own store, which takes it by its
    content; else the digest of its file, which is what containerd's store knows.
    """
    common: list[str | None] = [""] * len(image.layers)
    for receiver in receivers:
        common = [_both(one, other) for one, other in zip(common, _there(image, receiver), strict=True)]
    return common


def _there(image: Image, receiver: Facts) -> list[str | None]:
    layers, other, engine = read(receiver.layers) or Layers(), read(receiver.image), read(receiver.docker)
    if engine is not None and engine.containerd_store:
        digests = {each.layer: each.digest for each in layers.blobs}
        return [digests.get(layer) for layer in image.layers]
    prefix = 0
    for chain in (*layers.chains, *([other.layers] if other is not None else [])):
        same = [one == another for one, another in zip(chain, image.layers, strict=False)]
        prefix = max(prefix, [*same, False].index(False))
    return ["" if place < prefix else None for place in range(len(image.layers))]


def _both(one: str | None, other: str | None) -> str | None:
    if one is None or other is None or (one and other and one != other):
        return None
    return one or other


def left_out_bytes(image: Image, source: Facts, receivers: Sequence[Facts]) -> int:
    """Bytes of the layers that ``source`` leaves out of its archive of ``image``; none that an engine is silent about.

    ``receivers`` get the same archive.
    """
    return sum(left_out(image, source, receivers).values())


def left_out(image: Image, source: Facts, receivers: Sequence[Facts]) -> dict[str, int]:
    """Bytes of each file that is left out, by its digest; 0 where an engine does not say them."""
    have, files = shared(image, receivers), (read(source.layers) or Layers()).files
    if len(files) != len(have) or not receivers:
        return {}
    known = {each.digest: each.bytes for receiver in receivers for each in (read(receiver.layers) or Layers()).blobs}
    names = [file.digest or wanted for file, wanted in zip(files, have, strict=True)]
    staying = {name for name, wanted in zip(names, have, strict=True) if wanted not in {"", name}}
    return {
        name: file.bytes or known.get(name, 0)
        for name, file in zip(names, files, strict=True)
        if name and name not in staying
    }
