"""What announces SSH by multicast DNS becomes a candidate; what is elsewhere or no host name does not."""

from __future__ import annotations

import ipaddress
import socket
import time

import pytest

from sparkcluster.setup.mdns import MAX_NAMES, SERVICE, Browsed, Candidate, browse, judged
from sparkcluster.setup.networks import Attached

LAN = Attached("eth0", ipaddress.ip_interface("192.168.1.5/24"))
WIFI = Attached("wlan0", ipaddress.ip_interface("192.168.50.5/24"))
CABLE = Attached("enp1s0f1np1", ipaddress.ip_interface("169.254.7.7/16"))
LAN6 = Attached("eth0", ipaddress.ip_interface("2001:db8::5/64"))
NETWORKS = [LAN, WIFI, CABLE, LAN6]


def found(**announced: list[str]) -> Browsed:
    by_name = {name.replace("_", "-") + ".local.": addresses for name, addresses in announced.items()}
    return judged({name: list(map(ipaddress.ip_address, each)) for name, each in by_name.items()}, NETWORKS)


def test_addresses_in_attached_networks_count_and_the_best_comes_first():
    browsed = found(
        spark_1a2b=["2001:db8::9", "169.254.3.3", "192.168.50.9", "192.168.1.9", "172.17.0.1", "fe80::1"],
    )
    assert browsed == Browsed((Candidate("spark-1a2b.local", "192.168.1.9"),))


def test_a_machine_elsewhere_is_left_out():
    assert found(spark_1a2b=["203.0.113.9"]) == Browsed()


@pytest.mark.parametrize(
    "name",
    ["\x1b[31mspark-1a2b.local.", "spark-1a2b.example.com.", "-x.local.", "$(reboot).local."],
)
def test_what_is_no_host_name_is_dropped(name):
    assert judged({name: [ipaddress.ip_address("192.168.1.9")]}, NETWORKS) == Browsed()


@pytest.mark.parametrize(("name", "looks"), [("spark-1a2b", True), ("gx10-9641", True), ("raspberrypi", False)])
def test_names_out_of_the_box_look_like_a_spark(name, looks):
    assert found(**{name.replace("-", "_"): ["192.168.1.9"]}).candidates[0].looks_like_spark is looks


def test_a_responder_is_found():
    """A real one, on loopback: it answers a question that was sent by multicast."""
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


def test_a_flood_of_names_is_cut_off():
    many = {f"host-{number}.local.": [ipaddress.ip_address("192.168.1.9")] for number in range(2 * MAX_NAMES)}
    assert len(judged(many, NETWORKS).candidates) == MAX_NAMES
