"""Whose death a log tells of: the head repeats what its workers said, and ends because of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

# In order of how much they say: a death, a failure, and the place of Ray's task that raised.
_PLACES = (
    # RayExecutorV2 and the multiprocessing executor of vLLM 0.32
    re.compile(r"rank=\[(?P<rank>\d+)\] died|VllmWorker-(?P<other>\d+) died"),
    # the block under ray.exceptions.RayActorError (Ray 2.60)
    re.compile(r"(?:^|[\s\])])ip: (?P<address>\d+(?:\.\d+){3})\s*$"),
    re.compile(r"\bWorker (?P<rank>\d+) failed: "),
    # ray.exceptions.RayTaskError(...): ray::RayWorkerWrapper.execute_method() (pid=13, ip=192.168.177.12, ...)
    re.compile(r"\bray::[^(]*\(\) \(pid=\d+, ip=(?P<address>\d+(?:\.\d+){3})"),
)


def blamed(lines: Sequence[str], members: Sequence[str]) -> int | None:
    """The rank that a log of its group blames, or None where it blames nobody.

    Args:
        lines: of one rank's log, oldest first.
        members: addresses of the group's nodes, by rank.
    """
    for pattern in _PLACES:
        for line in lines:
            found = pattern.search(line)
            if found is None:
                continue
            place = found.groupdict()
            number = place.get("rank") or place.get("other")
            if number is not None and int(number) < len(members):
                return int(number)
            if place.get("address") in members:
                return members.index(str(place["address"]))
    return None
