"""Machines that announce SSH by multicast DNS become candidates, except outside addresses and invalid host names."""

from __future__ import annotations

import ipaddress
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sparkcluster.setup.mdns import MAX_NAMES, SERVICE, Browsed, Candidate, browse, judged
from sparkcluster.setup.networks import Attached

LAN = Attached("eth0", ipaddress.ip_interface("192.168.1.5/24"))
WIFI = Attached("wlan0", ipaddress.ip_interface("192.168.50.5/24"))
CABLE = Attached("enp1s0f1np1", ipaddress.ip_interface("169.254.7.7/16"))
LAN6 = Attached("eth0", ipaddress.ip_interface("2001:db8::5/64"))
NETWORKS = [LAN, WIFI, CABLE, LAN6]


def found(**announced: list[str]) -> tuple[Candidate, ...]:
    by_name = {name.replace("_", "-") + ".local.": addresses for name, addresses in announced.items()}
    return judged({name: list(map(ipaddress.ip_address, each)) for name, each in by_name.items()}, NETWORKS)


def test_addresses_in_attached_networks_are_used_best_first():
    browsed = found(
        spark_1a2b=["2001:db8::9", "169.254.3.3", "192.168.50.9", "192.168.1.9", "172.17.0.1", "fe80::1"],
    )
    assert browsed == (Candidate("spark-1a2b.local", "192.168.1.9"),)


def test_an_address_outside_the_local_network_is_skipped():
    assert found(spark_1a2b=["203.0.113.9"]) == ()


@pytest.mark.parametrize(
    "name",
    ["\x1b[31mspark-1a2b.local.", "sp\xe4rk-1a2b.local.", "spark-1a2b.example.com.", "-x.local.", "$(reboot).local."],
)
def test_an_invalid_host_name_is_dropped(name):
    assert judged({name: [ipaddress.ip_address("192.168.1.9")]}, NETWORKS) == ()


@pytest.mark.parametrize(("name", "looks"), [("spark-1a2b", True), ("gx10-9641", True), ("raspberrypi", False)])
def test_factory_names_look_like_a_spark(name, looks):
    assert found(**{name.replace("-", "_"): ["192.168.1.9"]})[0].looks_like_spark is looks


def test_an_mdns_responder_is_found():
    """A real one, on loopback: it answers a multicast question."""
    from zeroconf import IPVersion, ServiceInfo, Zeroconf

    responder = Zeroconf(interfaces=["127.0.0.1"], ip_version=IPVersion.V4Only)
    try:
        name, address = f"spark-1a2b.{SERVICE}", socket.inet_aton("127.0.0.5")
        responder.register_service(ServiceInfo(SERVICE, name, 22, addresses=[address], server="spark-1a2b.local."))
        browsed, end = Browsed(), time.monotonic() + 60
        while not browsed.candidates and time.monotonic() < end:
            browsed = browse([Attached("lo", ipaddress.ip_interface("127.0.0.1/8"))], seconds=1)
    finally:
        responder.close()
    assert browsed.problem is None
    assert Candidate("spark-1a2b.local", "127.0.0.5") in browsed.candidates


def announcement(name: bytes) -> bytes:
    """A packet in which ``name`` announces SSH at 127.0.0.6, in the format of RFC 1035."""
    service = b"\x04_ssh\x04_tcp\x05local\x00"
    instance, host = bytes([len(name)]) + name + service, bytes([len(name)]) + name + b"\x05local\x00"
    records = [
        (service, 12, instance),
        (instance, 33, struct.pack(">HHH", 0, 0, 22) + host),
        (host, 1, socket.inet_aton("127.0.0.6")),
    ]
    body = [owner + struct.pack(">HHIH", kind, 1, 120, len(data)) + data for owner, kind, data in records]
    return struct.pack(">6H", 0, 0x8400, 0, len(body), 0, 0) + b"".join(body)


def test_invalid_names_and_a_flood_of_others_hide_no_spark(caplog):
    """With one packet each, which any machine in the network can send."""
    odd = [b"\x00-1a2b", b"\xff\xfe-1a2b", b"sp\xc3\xa4rk-1a2b", b"\x1b[2J", b"a.b", b" "]
    names = [*odd, *(b"host-%d" % number for number in range(MAX_NAMES + 10)), b"spark-1a2b"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, ThreadPoolExecutor(1) as pool:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        browsed, end = Browsed(), time.monotonic() + 60
        while not any(each.looks_like_spark for each in browsed.candidates) and time.monotonic() < end:
            browsing = pool.submit(browse, [Attached("lo", ipaddress.ip_interface("127.0.0.1/8"))], seconds=3)
            time.sleep(0.5)
            for name in names:
                sock.sendto(announcement(name), ("224.0.0.251", 5353))
                time.sleep(0.001)
            browsed = browsing.result()
    assert Candidate("spark-1a2b.local", "127.0.0.6") in browsed.candidates
    assert browsed.problem == f"{MAX_NAMES} or more machines announce SSH here, so some may be missing"
    assert caplog.records == []
