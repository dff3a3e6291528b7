"""The cables of a lab as lines for ip(8)."""

import dataclasses
from pathlib import Path

import pytest

from sparkcluster.errors import UsageError
from sparkcluster.lab import network
from sparkcluster.lab.spec import FUNCTIONS, LabSpec, plain
from sparkcluster.lab.state import State, directory_of


def state(spec: LabSpec, index: int = 7) -> State:
    return State("id", "lab", Path("/nowhere"), index, "stub", spec)


def test_mac_addresses_have_the_suffixes_of_a_real_card_and_are_unique():
    tails = [network.mac(0, 0, function.mac_tail) for function in FUNCTIONS]
    assert [int(mac[-2:], 16) for mac in tails] == [0, 1, 4, 5]
    everywhere = [network.mac(lab, spark, tail) for lab in (0, 1, 199) for spark in range(32) for tail in (0, 5)]
    assert len(set(everywhere)) == len(everywhere)


def test_device_names_fit_the_kernels_15_characters():
    longest = state(plain(32), index=199)
    names = [network.peer(31, function) for function in (*FUNCTIONS, None)]
    assert max(len(name) for name in (*names, longest.host_device, *network.bridges(longest.spec))) <= 15


def test_the_cables_of_pairs_are_separate():
    lab = state(LabSpec(plain(4).sparks, "pairs"))
    assert network.cable_ends(lab.nodes[2], ["p1"]) == ["s2P2p1s0f1", "s2p1s0f1", "s3P2p1s0f1", "s3p1s0f1"]
    assert network.bridges(lab.spec) == ["mgmt", "rail0", "rail1", "rail4", "rail5"]
    assert network.bridges(dataclasses.replace(lab.spec, bare=True)) == ["mgmt", "cable0", "cable2"]
    longest = network.bridges(LabSpec(plain(32).sparks, "pairs"))[-1]
    assert len(longest) <= 15


@pytest.mark.parametrize("name", ["../etc", "cache", "-x"])
def test_a_lab_name_that_is_not_a_directory_name_is_refused(name):
    with pytest.raises(UsageError):
        directory_of(name)
