"""Machines that announce SSH by multicast DNS in local networks (RFC 6762, RFC 6763).

DGX OS announces ``_ssh._tcp``; NVIDIA's ``discover-sparks`` browses for it with avahi. Import this module late:
zeroconf and asyncio are slow to load.
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
"""Maximum number of names to resolve, counted separately for names like a Spark's and for others, so that other names
cannot crowd out Sparks."""

_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.local")
# As posted by owners: spark-1a2b (NVIDIA), gx10-9641 and promaxgb10-5cd4 (other vendors); avahi appends -2 to a name
# that is taken.
_SPARK_NAME = re.compile(r"[a-z0-9][a-z0-9-]*-[0-9a-f]{4}(-[0-9]{1,2})?\.local")


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A machine that announces SSH.

    Attributes:
        name: host name, such as ``spark-1a2b.local``.
        address: an address in a local network; IPv4 is preferred to IPv6, and both to link-local.
    """

    name: str
    address: str

    @property
    def looks_like_spark(self) -> bool:
        """Whether the name looks like a Spark's factory name."""
        return _is_like_a_spark(self.name)


def _is_like_a_spark(name: str) -> bool:
    return _SPARK_NAME.fullmatch(name) is not None


@dataclasses.dataclass(frozen=True, slots=True)
class Browsed:
    """Result of ``browse``.

    Attributes:
        candidates: machines in the order of their names.
        problem: why mDNS does not work on this machine or may have missed machines; None if neither.
    """

    candidates: tuple[Candidate, ...] = ()
    problem: str | None = None


def browse(networks: Sequence[Attached], *, seconds: float = BROWSE_S) -> Browsed:
    """Browse the IPv4 ``networks`` for SSH announcements for ``seconds``; sends only to multicast addresses."""
    own = [str(each.address.ip) for each in networks if each.address.version == 4]
    if not own:
        return Browsed(problem="this machine has no IPv4 address in a local network")
    try:
        announced, full = asyncio.run(_announced(own, seconds))
    except OSError as error:
        return Browsed(problem=f"multicast DNS does not work here: {(error.strerror or str(error)).lower()}")
    problem = f"{MAX_NAMES} or more machines announce SSH here, so some may be missing" if full else None
    return Browsed(judged(announced, networks), problem)


async def _announced(own: list[str], seconds: float) -> tuple[dict[str, list[IpAddress]], bool]:
    """Addresses by announced host name, and whether the limit of names was reached."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    # A unicast answer may reach another program on port 5353, such as avahi.
    by_multicast = DNSQuestionType.QM
    requests: dict[bool, dict[str, tuple[AsyncServiceInfo, asyncio.Task[bool]]]] = {True: {}, False: {}}

    def announced(zeroconf: Any, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        alike = requests[_is_like_a_spark(f"{name.removesuffix(f'.{SERVICE}').lower()}.local")]
        if state_change is ServiceStateChange.Added and name not in alike and len(alike) < MAX_NAMES:
            with contextlib.suppress(Error):  # a name with control characters must not stop the others
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
        # An answer that cannot be parsed does not affect the others.
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
    """Candidates among the ``announced`` names: valid host names with an address in ``networks``."""
    own = {each.address.ip for each in networks}
    candidates = []
    for name, addresses in sorted((name.rstrip(".").lower(), each) for name, each in announced.items()):
        near: list[tuple[int, bool, int, str]] = []
        for address in (each for each in addresses if each not in own):
            network = network_of(address, networks)
            # link-local IPv6 addresses are announced without an interface
            if network is not None and (address.version == 4 or not address.is_link_local):
                near.append((address.version, address.is_link_local, networks.index(network), str(address)))
        if near and _HOST_NAME.fullmatch(name) is not None:
            candidates.append(Candidate(name, min(near)[-1]))
    return tuple(candidates)
