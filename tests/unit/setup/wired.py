"""Surveys of Sparks with the cabling that a test describes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sparkcluster.facts.survey import Survey

TWINS = {
    "p0": ("enp1s0f0np0", "enP2p1s0f0np0"),
    "p1": ("enp1s0f1np1", "enP2p1s0f1np1"),
}
PCI = {
    "enp1s0f0np0": "0000:01:00.0",
    "enp1s0f1np1": "0000:01:00.1",
    "enP2p1s0f0np0": "0002:01:00.0",
    "enP2p1s0f1np1": "0002:01:00.1",
}
End = tuple[str, str]


def mac(place: int, twin: str) -> str:
    """MAC address of a twin of Spark number ``place``: the suffixes of the four functions are +0, +1, +4 and +5."""
    return f"4c:bb:47:2d:{place:02x}:{(0, 1, 4, 5)[list(PCI).index(twin)]:02x}"


def survey(name: str, place: int, cabled: Collection[str], **changes: Any) -> dict[str, Any]:
    """The document of a Spark that is not set up; without a cable its ConnectX-7 is absent."""
    interfaces: list[dict[str, Any]] = [
        {"name": "enP7s7", "mac": f"3c:6d:66:00:{place:02x}:10", "operstate": "up", "carrier": True, "mtu": 1500,
         "driver": "r8127", "addresses": [f"10.77.0.{11 + place}/24"]},
        {"name": "docker0", "mac": f"02:42:00:00:{place:02x}:01", "operstate": "down", "carrier": False, "mtu": 1500,
         "addresses": ["172.17.0.1/16"]},
    ]  # fmt: skip
    for port, twins in TWINS.items() if cabled else ():
        interfaces += [
            {"name": twin, "mac": mac(place, twin), "operstate": "up" if port in cabled else "down",
             "carrier": port in cabled, "mtu": 1500, "speed_mbps": 200000 if port in cabled else None,
             "phys_port_name": port, "driver": "mlx5_core", "pci": PCI[twin], "addresses": []}
            for twin in twins
        ]  # fmt: skip
    document = {
        "hostname": name,
        "user": "nvidia",
        "uid": 1000,
        "groups": ["nvidia"],
        "home": "/home/nvidia",
        "machine": f"{place:064x}",
        "architecture": "aarch64",
        "kernel": "6.14.0-1015-nvidia",
        "os": {"id": "ubuntu", "version": "24.04"},
        "dgx": {"name": "DGX Spark"},
        "sudo": "free",
        "interfaces": interfaces,
        "neighbours": [],
        "hf_home": "/home/nvidia/.cache/huggingface",
    }
    return document | changes


def documents(
    segments: Sequence[Sequence[End]],
    *,
    names: Sequence[str] = (),
    addresses: Mapping[str, Mapping[str, str]] | None = None,
    mtu: int = 1500,
) -> dict[str, dict[str, Any]]:
    """Documents of Sparks by name. Each of ``segments`` has the ends of a cable, or all ports on a switch.

    A twin with one of ``addresses`` was set up: it has no IPv6 address, and hears others only when it searches for them.
    """
    addresses = addresses or {}
    order = list(dict.fromkeys([*names, *(node for segment in segments for node, _ in segment)]))
    found = {
        name: survey(name, place, {port for segment in segments for node, port in segment if node == name})
        for place, name in enumerate(order)
    }
    for name, document in found.items():
        for interface in document["interfaces"]:
            if interface["name"] in addresses.get(name, {}):
                interface.update(addresses=[addresses[name][interface["name"]]], mtu=mtu)
    ends = [[(node, twin) for node, port in segment for twin in TWINS[port]] for segment in segments]
    for segment in ends:
        for node, twin in segment:
            found[node]["neighbours"] += [
                {"interface": twin, "mac": mac(order.index(other), far), "address": "fe80::1"}
                for other, far in segment
                if (other, far) != (node, twin)
            ]
    return found


def hears(found: Mapping[str, dict[str, Any]], one: End, *others: End) -> None:
    """Make the first twin of a port hear the second one of ``others``."""
    order = list(found)
    found[one[0]]["neighbours"] += [
        {"interface": TWINS[one[1]][0], "mac": mac(order.index(node), TWINS[port][1])} for node, port in others
    ]


def hear_each_other(found: Mapping[str, dict[str, Any]], one: End, other: End) -> None:
    """Make a twin of each of two ports hear one of the other."""
    hears(found, one, other)
    hears(found, other, one)


def parsed(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Survey]:
    """The documents as surveys."""
    return {name: Survey.model_validate(document) for name, document in found.items()}


def sparks(segments: Sequence[Sequence[End]], **options: Any) -> dict[str, Survey]:
    """Surveys of Sparks, as ``documents`` describes them."""
    return parsed(documents(segments, **options))


ONE = [[("a", "p1"), ("b", "p1")]]
TWO = [[("a", "p0"), ("b", "p0")], [("a", "p1"), ("b", "p1")]]
CROSSED = [[("a", "p0"), ("b", "p1")], [("a", "p1"), ("b", "p0")]]
RING = [[("a", "p1"), ("b", "p0")], [("b", "p1"), ("c", "p0")], [("c", "p1"), ("a", "p0")]]
SWITCH = [[("a", "p0"), ("b", "p1"), ("c", "p1"), ("d", "p0")]]
BOTH_ON_SWITCH = [[(node, port) for node in "abc" for port in ("p0", "p1")]]
PAIRS = [[("a", "p1"), ("b", "p1")], [("c", "p0"), ("d", "p0")]]
