"""Faults between a Spark and the operator, which may undo themselves after a time."""

import socket
import threading
from pathlib import Path

import pytest

from sparkcluster.errors import UsageError
from sparkcluster.lab import faults
from sparkcluster.lab.faults import flip_byte
from sparkcluster.lab.sparks import Spark
from sparkcluster.lab.spec import LabSpec, SparkSpec, plain
from sparkcluster.lab.state import State


@pytest.fixture
def ran(monkeypatch):
    """Commands that were run on a Spark."""
    commands = []
    monkeypatch.setattr(Spark, "run", lambda _, argv, **more: commands.append(list(argv)))
    return commands


@pytest.fixture
def spark():
    return Spark(State("id", "lab", Path("/nowhere"), 7, "stub", plain(2)), 0)


@pytest.mark.parametrize("kind", ["silence", "ssh-hang"])
def test_a_fault_for_some_seconds_starts_a_timer_that_heal_ends(spark, ran, monkeypatch, kind):
    class Ended:
        returncode = 0

    monkeypatch.setattr(Spark, "run", lambda _, argv, **more: ran.append(list(argv)) or Ended())
    for seconds in ([], ["40"]):
        ran.clear()
        faults.FAULTS[kind].put(spark, *seconds)
        timers = [argv for argv in ran if "setsid" in " ".join(argv)]
        assert [argv[argv.index("-c", 3) + 3] for argv in timers] == seconds
    [step] = faults.FAULTS[kind].put(spark, "40")
    name = ran[-2][ran[-2].index("-c", 3) + 2]
    assert f'pkill -KILL -f "{name} [0-9]"' in step["run"][2]
    assert ran[-2][-len(step["run"][4:]) :] == step["run"][4:]  # both undo it alike


@pytest.mark.parametrize(
    ("kind", "text"), [("silence", "soon"), ("ssh-hang", "0"), ("silence", "-1"), ("docker-slow", "no")]
)
def test_a_time_that_is_no_number_changes_nothing(spark, ran, kind, text):
    with pytest.raises(UsageError, match="a time in seconds is a number from 1"):
        faults.put(spark, kind, [text])
    assert ran == []


def test_silence_is_between_the_spark_and_the_machine_alone(spark, ran):
    faults.put(spark, "silence", [])
    [argv] = ran
    assert argv[-2:] == ["10.77.7.1", "enP7s7"]
    assert spark.state.registry == "10.77.7.2"


@pytest.mark.parametrize("text", ["soon", "-1", "every-0", "every-", "0x10"])
def test_the_place_of_a_byte_is_a_number(spark, ran, text):
    with pytest.raises(UsageError, match="the place of a byte is a number from"):
        faults.put(spark, "flip-byte", [text])
    assert ran == []


def sent_through(flips, payload):
    """What arrives of ``payload`` on a connection whose bytes are passed on with ``flips``; real sockets."""
    (server, entry), (leave, client) = socket.socketpair(), socket.socketpair()
    ends = [
        threading.Thread(target=flip_byte.pass_on, args=(entry, leave, flips)),
        threading.Thread(target=lambda: (server.sendall(payload), server.close())),
    ]
    for each in ends:
        each.start()
    found = b"".join(iter(lambda: client.recv(1 << 20), b""))
    for each in ends:
        each.join(10)
    for each in (entry, leave, client):
        each.close()
    return found


def differing(found, payload):
    assert len(found) == len(payload)
    return [at for at, (one, other) in enumerate(zip(found, payload, strict=True)) if one != other]


def test_a_byte_is_flipped_once_in_the_first_connection_that_is_so_long():
    flips, long = flip_byte.Flips(700_001, every=False), bytes(range(256)) * 4000
    assert differing(sent_through(flips, long[:700_001]), long[:700_001]) == []
    assert differing(sent_through(flips, long), long) == [700_001]
    assert differing(sent_through(flips, long), long) == []


def test_every_nth_byte_is_flipped_in_every_connection_wherever_its_blocks_end():
    flips, long = flip_byte.Flips(300_000, every=True), bytes(range(256)) * 4000
    for _ in range(2):
        assert differing(sent_through(flips, long), long) == [299_999, 599_999, 899_999]
    block = bytearray(10)
    flip_byte.Flips(3, every=True).change(block, 4)  # bytes 5 to 14: 6, 9 and 12 are third ones
    assert [at for at, byte in enumerate(block) if byte] == [1, 4, 7]


def test_flips_are_of_what_others_fetch_over_the_rails(spark, monkeypatch):
    commands = []

    class Ended:
        stdout = "40123\n"

    monkeypatch.setattr(Spark, "run", lambda _, argv, **more: commands.append(list(argv)) or Ended())
    faults.put(spark, "flip-byte", ["every-65536"])
    proxy, rules = commands
    assert proxy[-2:] == ["65536", "every"]
    lines = rules[2].partition(" || {")[0].split(" && ")
    assert [line.split()[7] for line in lines] == ["enp1s0f1np1", "enP2p1s0f1np1"]
    assert all(line.endswith("--to-ports 40123") for line in lines)
    [steps] = [fault["undo"] for fault in spark.state.faults["spark-0001"]]
    assert steps[0]["run"][2].splitlines()[-1] == f"pkill -KILL -f '{proxy[3]} [0-9]' || true"


@pytest.mark.parametrize("kind", ["duplicate-address", "firewall"])
def test_the_other_spark_of_a_fault_is_on_a_rail_of_this_one_not_on_another_pair_with_its_addresses(kind, ran):
    spec = LabSpec(tuple(SparkSpec(name=name) for name in "abcd"), topology="pairs")
    second = Spark(State("id", "lab", Path("/nowhere"), 7, "stub", spec), 1)
    with pytest.raises(UsageError, match="b and c share no rail"):
        faults.put(second, kind, ["c"])
    assert ran == []


@pytest.mark.parametrize(
    ("words", "typed"),
    [(["mtu"], "mtu 1500"), (["driver"], "driver VERSION"), (["silence", "1", "2"], "silence"),
     (["disk-full", "x"], "disk-full")],
)  # fmt: skip
def test_a_hint_shows_the_argument_that_a_fault_takes(spark, ran, words, typed):
    with pytest.raises(UsageError) as caught:
        faults.put(spark, words[0], words[1:])
    assert caught.value.hint == f"sparkcluster lab fault spark-0001 {typed}"
    assert ran == []
