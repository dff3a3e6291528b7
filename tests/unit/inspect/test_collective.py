"""The container of an all-gather, its output, and when none is started."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkcluster.facts.docker import Rank
from sparkcluster.inspect import collective
from sparkcluster.node import all_gather
from tests.unit.inspect.conftest import NET


@pytest.fixture
def two(loopback):
    return loopback("alpha", "beta")


def test_the_test_container_has_the_settings_of_a_rank(two):
    group = two.topology.groups[0]
    argv = collective.command(two.spec, two.facts["beta"], group, group.members[1])
    line = " ".join(argv)
    assert argv[:6] == ["docker", "run", "--rm", "--name", "sparkcluster-measure-atlas-beta", "--network"]
    assert "--detach" not in argv
    assert "--device /dev/infiniband" in line
    assert "--ulimit memlock=-1" in line
    assert "--pull never" in line
    assert "--env NCCL_IB_HCA==rocep1s0f1,roceP2p1s0f1" in line
    assert "--env NCCL_SOCKET_IFNAME==enp1s0f1np1" in line
    assert "--env NCCL_DEBUG=INFO" in line
    assert "io.sparkcluster.measure=atlas" in line
    assert "io.sparkcluster.cluster" not in line, "it must not count as a rank"
    assert argv[-5:-2] == ["/usr/bin/python3", two.facts["beta"].image.id, "-c"]
    assert compile(argv[-2], "all_gather.py", "exec")
    request = json.loads(argv[-1])
    assert request["bytes"] == 256 << 20
    assert (request["rank"], request["world"], request["address"]) == (1, 2, f"{NET}.77.11")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ranks": (Rank(name="r", state="running"),)}, "a rank is using the GPU of beta"),
        ({"image": None}, "beta has no image"),
    ],
)
def test_no_test_container_while_a_rank_runs_or_without_an_image(two, change, words):
    assert collective.why_not(two.spec, two.facts, two.topology) is None
    two.change("beta", **change)
    assert words in collective.why_not(two.spec, two.facts, two.topology)


SAID = 'sparkcluster-all-gather {"bus_gb_s": 22.125, "backend": "nccl"}\n'


@pytest.mark.parametrize(
    ("output", "bus", "over"),
    [
        ("spark:1:1 [0] NCCL INFO Using network IB\n" + SAID, 22.125, "NCCL over IB"),
        ("NCCL INFO Using network Socket\n" + SAID, 22.125, "NCCL over Socket"),
        ('sparkcluster-all-gather {"failed": "RuntimeError: NCCL error"}', None, "NCCL"),
        ("Traceback\nOSError: no", None, "NCCL"),
    ],
)
def test_output_of_a_rank(output, bus, over):
    found = collective.read(output, 1)
    assert (found.bus_gb_s, found.over) == (bus, over)
    assert bool(found.seen) is (bus is None)


@given(st.text(), st.integers(-20, 255))
def test_no_output_causes_a_traceback(text, code):
    collective.read(text, code)
    collective.read(f"sparkcluster-all-gather {text}", code)


def test_bus_bandwidth_is_the_rate_that_every_rank_receives():
    assert all_gather.bus_gb_s(16 * 10**9, 2, 0.4) == pytest.approx(20.0)
    assert all_gather.bus_gb_s(16 * 10**9, 4, 0.4) == pytest.approx(30.0)
