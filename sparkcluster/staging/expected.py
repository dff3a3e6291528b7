"""The dry run: for every copy its node, source, network, size and expected time."""

from __future__ import annotations

import dataclasses
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Literal

from sparkcluster.fit.known import size_of
from sparkcluster.node.shared import HUB_ADDRESS, registry_of
from sparkcluster.staging import ray
from sparkcluster.staging.artifacts import endpoint
from sparkcluster.staging.chain import Rates, chain, expected_s, probable
from sparkcluster.staging.copy import HERE
from sparkcluster.staging.notes import link
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.transfers import Transfers

BUILD = "build"


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """A copy that a node would get.

    Attributes:
        source: the node, registry or hub that it comes from, ``this machine``, or ``build``.
        bytes: None if unknown.
        over: network and interface, or another kind of connection, in words.
        medium: between nodes, the medium of the ``Way``.
        encrypted: whether it is sent encrypted.
        seconds: estimate; None if unknown: for downloads, builds, and an image that was never copied in this cluster,
            since Docker takes longer to load it than the network to transfer it.
    """

    node: str
    source: str
    bytes: int | None
    over: str
    encrypted: bool
    seconds: float | None
    medium: Literal["rail", "wire", "wifi", "tunnel", "download", "ssh", "build"]


def expect(run: Transfers, staging: Staging) -> tuple[Expected, ...]:
    """The copies for all nodes that lack something."""
    total = staging.size_bytes
    if staging.files is not None:
        return tuple(from_outside(node, HERE, total) for node in staging.nodes)
    if staging.what == "ray":
        return moves(run, staging, {node: ray.archive_bytes(run.facts[node]) for node in staging.nodes}, HERE)
    if staging.what == "weights" and total is None:
        total = size_of(staging.spec.playbook.model)
    sizes = {node: None if total is None else max(0, total - staging.present.get(node, 0)) for node in staging.nodes}
    return moves(run, staging, sizes, HERE if staging.given else BUILD if staging.built else publisher(staging))


def moves(run: Transfers, staging: Staging, sizes: Mapping[str, int | None], outside: str) -> tuple[Expected, ...]:
    """The copies for all nodes that lack ``staging``, if all ``probable`` connections work.

    ``sizes`` are the bytes for each node, None if unknown. ``outside`` is the source if no node has it; the first node
    that gets it passes it on.
    """
    settings = run.settings
    rates: Rates = {"image": settings.image_rates, "weights": settings.rates}.get(staging.what, {})
    ways = probable(run.facts, run.topology, [*staging.sources, *staging.nodes], encrypt=settings.encrypt)

    def passed_on(having: Sequence[str], nodes: Sequence[str]) -> list[Expected]:
        """The copies for each of ``nodes`` from nodes ``having`` all of it."""
        lacks = {node: size for node in nodes if (size := sizes.get(node)) is not None}
        total = max([1, *lacks.values()])
        has = {**dict.fromkeys(having, total), **{node: total - lacks.get(node, total) for node in nodes}}
        found = []
        for node, sources in chain([*having, *nodes], ways, has, total).items():
            size, seconds = lacks.get(node), None
            if node not in nodes or size == 0 or not sources:
                continue
            way = sources[0][0]
            if size is not None and (staging.what == "weights" or (way.medium, way.encrypted) in rates):
                seconds = round(expected_s(size, way, rates), 1)
            found.append(Expected(node, way.source, size, link(way), way.encrypted, seconds, way.medium))
        return found

    if staging.sources:
        return tuple(passed_on(staging.sources[:1] if staging.what == "image" else staging.sources, staging.nodes))
    first, *_ = (*staging.download, *staging.parts, *staging.nodes)
    if len(staging.parts) < 2:
        got = from_outside(first, outside, sizes.get(first))
        return (got, *passed_on([first], [node for node in staging.nodes if node != first]))
    united: list[Expected] = []
    for node in staging.nodes:
        others = [part for part in staging.parts if part != node]
        source, found = " and ".join(others), passed_on(others[:1], [node])
        united += [dataclasses.replace(each, source=source, bytes=None, seconds=None) for each in found]
    rest = [from_outside(first, outside, None)] if staging.download or outside == HERE else []
    return (*united, *rest)


def from_outside(node: str, source: str, size_bytes: int | None) -> Expected:
    """The copy for ``node`` from outside the cluster."""
    if source == HERE:
        return Expected(node, HERE, size_bytes, "SSH", True, None, "ssh")
    if source == BUILD:
        return Expected(node, BUILD, size_bytes, "docker build", False, None, "build")
    return Expected(node, source, size_bytes, "download", True, None, "download")


def publisher(staging: Staging) -> str:
    """Host of the hub or registry from which ``staging`` is downloaded."""
    if staging.what == "weights":
        return urllib.parse.urlsplit(endpoint(None) or HUB_ADDRESS).hostname or "hub"
    return registry_of(staging.name) or "docker.io"
