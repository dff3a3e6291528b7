"""After a killed copy the next run copies only the rest. Bytes are counted on the wire."""

from __future__ import annotations

import re
import time

import pytest
from staging_lab import HUB, MB, Rails, write_repository

from tests.lab.test_bring_ray import STATE

CASES = [
    (45, "operator"),
    pytest.param(25, "target", marks=pytest.mark.full),
    pytest.param(65, "source", marks=pytest.mark.full),
]
"""Percent of the bytes sent when a program is killed, and the node of the program."""

FILES, FILE_BYTES = 12, 8 * MB
PAYLOAD = FILES * FILE_BYTES


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab("sparks: [{name: source}, {name: target}]\n")


@pytest.fixture
def slow(lab):
    for spark in lab.sparks:
        lab.fault(spark.name, "slow-link", "100mbit")
    return lab


def over_a_rail(spark):
    """The programs of ``spark`` with a connection over a rail, by process ID."""
    lines = spark.run(["ss", "-Htnp", "state", "established"]).stdout.splitlines()
    return {pid for line in lines if "192.168.17" in line for pid in re.findall(r"pid=(\d+)", line)}


def killed(lab, command, victim, reached):
    """Wait until ``reached``, and kill the operator's command, or the copying program of a Spark."""
    while not reached():
        assert command.process.poll() is None, command.wait()
        time.sleep(0.01)
    if victim == "operator":
        command.kill()
        return
    found = over_a_rail(lab.spark(victim))
    assert found
    lab.spark(victim).run(["kill", "-KILL", *found])
    command.wait()


@pytest.fixture
def repository(lab):
    source, target = lab.sparks
    top = write_repository(source, "lab/large", FILES, FILE_BYTES)
    yield top
    for spark in (source, target):
        spark.run(["rm", "-rf", top, f"{STATE}/models"])


@pytest.mark.parametrize(("point", "victim"), CASES)
def test_a_killed_copy_of_weights_resumes_with_the_missing_bytes(slow, cli, variant, repository, point, victim):
    source, target = slow.sparks
    inventory = variant(slow, playbook={"model": {"path": None, "id": "lab/large"}})
    with Rails(slow) as rails:
        first = cli.start("stage", inventory, "weights")
        killed(slow, first, victim, lambda: rails.bytes(source, sent=True) >= PAYLOAD * point / 100)
        cli("stage", inventory, "weights").ok()
    hashes = [
        spark.run(["sh", "-c", f"cd {repository} && find . -type f | sort | xargs sha256sum"]).stdout
        for spark in slow.sparks
    ]
    assert hashes[0] == hashes[1]
    assert hashes[0].count("\n") == FILES + 4
    assert all(line.rpartition("/")[2] == line[:64] for line in hashes[1].splitlines() if "/blobs/" in line)
    assert target.run(["readlink", "-e", f"{HUB}/models--lab--large/snapshots/{'1' * 40}/config.json"]).stdout
    assert rails.bytes(source, sent=True) <= 1.05 * PAYLOAD + 5 * MB, "headers and data in transit"
