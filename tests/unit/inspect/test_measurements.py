"""Which nodes measure with each other, for how long, and the command lines of perftest."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkcluster.inspect import perftest
from sparkcluster.inspect.measurements import estimate, measurements, pairs_of, rounds
from sparkcluster.topology.model import Link

LINK = Link("enp1s0f1np1", "192.168.177.12", "192.168.177.0/24", 9000, 200000, "rocep1s0f1", 3)

# NVIDIA/dgx-spark-playbooks shows this result for a single twin.
SAMPLE = """
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : rocep1s0f0
 Number of qps   : 1            Transport type : IB
 Mtu             : 1024[B]
 GID index       : 3
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]    MsgRate[Mpps]
 65536      882805           0.00               92.57                0.176554
---------------------------------------------------------------------------------------
"""


@pytest.mark.parametrize("number", [2, 5, 8])
def test_every_pair_measures_once_and_no_node_twice_per_round(number):
    names = [f"spark-{place}" for place in range(number)]
    plan = pairs_of(names)
    for pairs in plan:
        busy = [name for pair in pairs for name in pair]
        assert len(busy) == len(set(busy))
    done = [frozenset(pair) for pairs in plan for pair in pairs]
    assert sorted(done, key=sorted) == sorted(map(frozenset, itertools.combinations(names, 2)), key=sorted)
    assert len(plan) == (number - 1 if number % 2 == 0 else number)


def test_the_duration_is_known_before_the_start_and_grows_with_the_rounds(loopback):
    def lasts(number, *without):
        lab = loopback(*[f"n{place}" for place in range(number)])
        todo = [[measurements(lab.facts, pair, without) for pair in pairs] for pairs in rounds(lab.topology)]
        return estimate(todo, 2)

    one, three, seven = (lasts(number) for number in (2, 4, 8))
    assert (three, seven) == (pytest.approx(3 * one), pytest.approx(7 * one))
    assert lasts(2, "n0") == 12
    assert lasts(1) == 0


def test_the_command_lines_of_both_ends():
    assert perftest.server(LINK, seconds=2) == [
        "ib_write_bw", "-d", "rocep1s0f1", "-x", "3", "-s", "1048576", "-D", "2", "-F", "--report_gbits",
        "-p", "18515",
    ]  # fmt: skip
    assert perftest.client(LINK, "192.168.177.12", seconds=2, port=18516)[-3:] == ["-p", "18516", "192.168.177.12"]


def test_the_average_is_read_from_the_row():
    assert perftest.average_gbit_s(SAMPLE) == 92.57
    assert perftest.average_gbit_s(SAMPLE.replace("92.57", "97.28")) == 97.28
    assert perftest.average_gbit_s(SAMPLE.replace("Gb/sec", "MB/sec")) is None


@pytest.mark.parametrize(
    ("output", "exit_code", "words"),
    [
        (SAMPLE.rsplit(" 65536", 1)[0], 0, "no result row, exit code 0"),
        ("Couldn't connect to 192.168.177.12:18515\n Unable to open file descriptor", 1, "Couldn't connect"),
    ],
)
def test_without_a_row_there_is_no_result_with_any_exit_code(output, exit_code, words):
    assert perftest.average_gbit_s(output) is None
    assert words in perftest.complaint(output, exit_code)


@given(st.text())
def test_no_output_causes_a_traceback(text):
    perftest.average_gbit_s(text)
    perftest.average_gbit_s(SAMPLE.replace("92.57", text))
    perftest.complaint(text, 1)
