"""Messages about copies between nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from sparkcluster.errors import StageError
from sparkcluster.printable import shell
from sparkcluster.report import duration, share, size
from sparkcluster.staging.chain import Rates, Way, expected_s
from sparkcluster.staging.order import FailedSource, Room, Wrong

_NETWORKS = {"rail": "its cable", "wire": "the management network", "wifi": "WiFi", "tunnel": "a tunnel"}


def link(way: Way) -> str:
    """Such as ``the management network (enP7s7, 1 Gb/s)``."""
    speed = f", {way.speed_mbps / 1000:g} Gb/s" if way.speed_mbps else ""
    return f"{_NETWORKS[way.medium]} ({way.interface}{speed})"


def off_rails(what: str, way: Way, size_bytes: int, rates: Rates, *, planned: bool) -> str:
    """Warning: a copy leaves the interconnect, with its expected time; not ``planned`` if another connection failed."""
    source, target = way.source, way.target
    why = f"{source} and {target} share no cable" if planned else "the planned connection failed"
    took = duration(expected_s(size_bytes, way, rates))
    return f"{why}: {target} gets {what} from {source} over {link(way)}, encrypted; {size(size_bytes)}, about {took}"


def left(node: str, gone: FailedSource, source: str | None, done: int, total: int) -> str:
    """Message: ``node`` stopped pulling from a node, or from an address of it; with the source that it uses now."""
    at = share(done, total)
    if gone.address is not None:
        return f"{node}: the link to {gone.node} at {gone.address} failed: {gone.why}; continuing over another at {at}"
    then = f"continuing with {source}" if source else "waiting for another node that has it"
    return f"{node}: {gone.why}; {then} at {at}"


def wrong(path: str, node: str, found: Wrong) -> str:
    """Message: a file arrived corrupt."""
    return f"{path} from {found.source} arrived corrupt on {node} (wrong SHA-256); copying it again"


def kept(path: str, node: str) -> str:
    """Warning: a user's file differed from the copy and was moved."""
    return f"warning: a different file on {node} was replaced; the old one was moved to {path}"


def no_room(step: str, what: str, rooms: Mapping[str, Room]) -> list[StageError]:
    """An error for each node whose disk is too small."""
    prune = "docker image prune" if "image" in step else "sparkcluster models INVENTORY --prune"
    return [
        StageError(
            f"{node} has {size(room.free)} free at {room.path} but needs {size(room.needed)} for {what}: "
            f"{size(room.needed - room.free)} short",
            node=node,
            step=step,
            hint=f"{prune}; or on {node}: {shell('du -sh', room.path)}/*",
        )
        for node, room in rooms.items()
        if room.free < room.needed
    ]
