"""Machines that announce SSH by multicast DNS in the networks of this machine (RFC 6762, RFC 6763).

DGX OS announces ``_ssh._tcp``: NVIDIA's own ``discover-sparks`` looks for it with avahi.
This module is imported late: zeroconf and asyncio take a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zeroconf import DNSQuestionType, Error, IPVersion, ServiceStateChange
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from sparkcluster.setup.networks import Attached, IpAddress, network_of

SERVICE = "_ssh._tcp.local."
BROWSE_S = 3.0
MAX_NAMES = 256
"""The most names that are asked about: of those like a Spark's, and of all others, which hide no Spark."""

_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.local")
# spark-1a2b of NVIDIA's, gx10-9641 and promaxgb10-5cd4 of others, as their owners posted them; avahi adds -2 to a name
# that is taken.
_SPARK_NAME = re.compile(r"[a-z0-9][a-z0-9-]*-[0-9a-f]{4}(-[0-9]{1,2})?\.local")


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A machine that announces SSH.

    Attributes:
        name: its host name, such as ``spark-1a2b.local``.
        address: in a network of this machine; IPv4 before IPv6, others before link-local ones.
    """

    name: str
    address: str

    @property
    def looks_like_spark(self) -> bool:
        """Whether it has a name as Sparks have when they come out of the box."""
        return _is_like_a_spark(self.name)


def _is_like_a_spark(name: str) -> bool:
    return _SPARK_NAME.fullmatch(name) is not None


@dataclasses.dataclass(frozen=True, slots=True)
class Browsed:
    """What was found.

    Attributes:
        candidates: by name.
        problem: why mDNS cannot be used on this machine, or why some machines may be missing; None for neither.
    """

    candidates: tuple[Candidate, ...] = ()
    problem: str | None = None


def browse(networks: Sequence[Attached], *, seconds: float = BROWSE_S) -> Browsed:
    """Machines that announce SSH within ``seconds`` in the IPv4 ``networks``; sends to multicast addresses only."""
    own = [str(each.address.ip) for each in networks if each.address.version == 4]
    if not own:
        return Browsed(problem="this machine has no IPv4 address in a local network")
    try:
        announced, full = asyncio.run(_announced(own, seconds))
    except OSError as error:
        return Browsed(problem=f"multicast DNS cannot be used here: {(error.strerror or str(error)).lower()}")
    problem = f"{MAX_NAMES} or more machines announce SSH here, so some may be missing" if full else None
    return Browsed(judged(announced, networks), problem)


async def _announced(own: list[str], seconds: float) -> tuple[dict[str, list[IpAddress]], bool]:
    """Addresses by announced host name, and whether there are more names than are asked about."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    # An answer by unicast may reach another program that listens on port 5353, such as avahi.
    by_multicast = DNSQuestionType.QM
    requests: dict[bool, dict[str, tuple[AsyncServiceInfo, asyncio.Task[bool]]]] = {True: {}, False: {}}

    def announced(zeroconf: Any, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        alike = requests[_is_like_a_spark(f"{name.removesuffix(f'.{SERVICE}').lower()}.local")]
        if state_change is ServiceStateChange.Added and name not in alike and len(alike) < MAX_NAMES:
            with contextlib.suppress(Error):  # a name with control characters; raised here, it would hide all others
                info = AsyncServiceInfo(service_type, name)
                left_ms = max(100.0, (end - loop.time()) * 1000)
                alike[name] = info, loop.create_task(info.async_request(zeroconf, left_ms, by_multicast))

    zeroconf = AsyncZeroconf(interfaces=own, ip_version=IPVersion.V4Only)
    try:
        browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE, handlers=[announced], question_type=by_multicast)
        await asyncio.sleep(seconds)
        await browser.async_cancel()
        pairs = [pair for alike in requests.values() for pair in alike.values()]
        for _, request in pairs:
            request.cancel()
        # An answer that cannot be parsed costs that answer alone.
        await asyncio.gather(*(request for _, request in pairs), return_exceptions=True)
    finally:
        await zeroconf.async_close()
    found: dict[str, list[IpAddress]] = {}
    for info, _ in pairs:
        if info.server:
            addresses = info.ip_addresses_by_version(IPVersion.All)
            found.setdefault(info.server, []).extend(ipaddress.ip_address(str(each)) for each in addresses)
    return found, any(len(alike) == MAX_NAMES for alike in requests.values())


def judged(announced: Mapping[str, Iterable[IpAddress]], networks: Sequence[Attached]) -> tuple[Candidate, ...]:
    """``announced`` addresses by host name as candidates: names are host names, and addresses are in ``networks``."""
    own = {each.address.ip for each in networks}
    candidates = []
    for name, addresses in sorted((name.rstrip(".").lower(), each) for name, each in announced.items()):
        near: list[tuple[int, bool, int, str]] = []
        for address in (each for each in addresses if each not in own):
            network = network_of(address, networks)
            # link-local IPv6 comes without its interface
            if network is not None and (address.version == 4 or not address.is_link_local):
                near.append((address.version, address.is_link_local, networks.index(network), str(address)))
        if near and _HOST_NAME.fullmatch(name) is not None:
            candidates.append(Candidate(name, min(near)[-1]))
    return tuple(candidates)
