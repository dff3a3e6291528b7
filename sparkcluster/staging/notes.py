"""What people read of copies between nodes while they run, and before. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from sparkcluster.errors import StageError
from sparkcluster.printable import shell
from sparkcluster.report import duration, share, size
from sparkcluster.staging.chain import Rates, Way, expected_s
from sparkcluster.staging.order import FailedSource, Room, Wrong

_NETWORKS = {"rail": "its cable", "wire": "the management network", "wifi": "WiFi", "tunnel": "a tunnel"}


def link(way: Way) -> str:
    """``the management network (enP7s7, 1 Gb/s)``."""
    speed = f", {way.speed_mbps / 1000:g} Gb/s" if way.speed_mbps else ""
    return f"{_NETWORKS[way.medium]} ({way.interface}{speed})"


def off_rails(what: str, way: Way, size_bytes: int, rates: Rates, *, planned: bool) -> str:
    """That a copy leaves the interconnect, and how long it takes; unless ``planned``, since something failed."""
    source, target = way.source, way.target
    why = f"{source} and {target} share no cable" if planned else "the way that was planned failed"
    took = duration(expected_s(size_bytes, way, rates))
    return f"{why}: {target} gets {what} from {source} over {link(way)}, encrypted; {size(size_bytes)}, about {took}"


def left(node: str, gone: FailedSource, source: str | None, done: int, total: int) -> str:
    """That ``node`` no longer pulls from a node, or by an address of it, and whom it asks instead."""
    at = share(done, total)
    if gone.address is not None:
        return f"{node}: the link to {gone.node} at {gone.address} failed: {gone.why}: goes on over another one at {at}"
    then = f"goes on with {source}" if source else "waits for another node that has it"
    return f"{node}: {gone.why}: {then} at {at}"


def wrong(path: str, node: str, found: Wrong) -> str:
    """That a file arrived corrupt."""
    return f"{path} arrived at {node} with another SHA-256 than {found.source} has; received again"


def kept(path: str, node: str) -> str:
    """That a file of the user's was not what the others have."""
    return f"warning: {node} had a different file where one was copied: it is {path} now"


def no_room(step: str, what: str, rooms: Mapping[str, Room]) -> list[StageError]:
    """One error for each node whose disk is too small."""
    prune = "docker image prune" if "image" in step else "sparkcluster models INVENTORY --prune"
    return [
        StageError(
            f"{node} has {size(room.free)} free at {room.path} and needs {size(room.needed)} for {what}: "
            f"{size(room.needed - room.free)} are missing",
            node=node,
            step=step,
            hint=f"{prune}; or on {node}: {shell('du -sh', room.path)}/*",
        )
        for node, room in rooms.items()
        if room.free < room.needed
    ]
