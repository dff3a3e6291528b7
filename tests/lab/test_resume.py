"""A copy that was killed at ten points: the next run moves only the rest. Bytes are counted on the wire."""

from __future__ import annotations

import re
import time

import pytest
from staging_lab import HUB, MB, Rails, write_repository

from sparkcluster.lab import images
from tests.lab.test_bring_ray import STATE

POINTS = range(5, 100, 10)
"""Percent of the bytes that were seen on the wire when a program is killed."""

VICTIMS = ("operator", "target", "source")
FILES, FILE_BYTES = 12, 8 * MB
PAYLOAD = FILES * FILE_BYTES
LEAST_IMAGE = 50 * MB


def cases(victims, *, every=True):
    """Every victim at every point, or at each point another one; the middle of each is in the plain run."""
    points = [
        (point, victim)
        for at, point in enumerate(POINTS)
        for victim in (victims if every else [victims[at % len(victims)]])
    ]
    plain = points[len(points) // 2 : len(points) // 2 + 1]
    return [pytest.param(*case, marks=() if case in plain else pytest.mark.full) for case in points]


def most(size):
    """The most that two runs move of ``size`` bytes: 5 % are headers and what was under way, 5 MB the rest of two runs."""
    return 1.05 * size + 5 * MB


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab("sparks: [{name: source}, {name: target, image: absent}]\n")


@pytest.fixture
def slow(lab):
    for spark in lab.sparks:
        lab.fault(spark.name, "slow-link", "100mbit")
    return lab


def over_a_rail(spark):
    """The programs of ``spark`` that are connected over a rail, by process id there."""
    lines = spark.run(["ss", "-Htnp", "state", "established"]).stdout.splitlines()
    return {pid for line in lines if "192.168.17" in line for pid in re.findall(r"pid=(\d+)", line)}


def killed(lab, command, victim, reached, programs=over_a_rail):
    """Wait until ``reached``, and kill: the operator's command, or the program of a Spark that copies."""
    until = time.monotonic() + 90
    while not reached():
        assert command.process.poll() is None, command.wait()
        assert time.monotonic() < until
        time.sleep(0.01)
    if victim == "operator":
        command.kill()
        return
    found = programs(lab.spark(victim))
    assert found
    lab.spark(victim).run(["kill", "-KILL", *found])
    command.wait(120)


@pytest.fixture
def repository(lab):
    source, target = lab.sparks
    top = write_repository(source, "lab/large", FILES, FILE_BYTES)
    yield top
    for spark in (source, target):
        spark.run(["rm", "-rf", top, f"{STATE}/models"])


@pytest.mark.parametrize(("point", "victim"), cases(VICTIMS))
def test_weights(slow, cli, variant, repository, point, victim):
    source, target = slow.sparks
    inventory = variant(slow, playbook={"model": {"path": None, "id": "lab/large"}})
    with Rails(slow) as rails:
        first = cli.start("stage", inventory, "weights")
        killed(slow, first, victim, lambda: rails.bytes(source, sent=True) >= PAYLOAD * point / 100)
        cli("stage", inventory, "weights", timeout=180).ok()
    hashes = [
        spark.run(["sh", "-c", f"cd {repository} && find . -type f | sort | xargs sha256sum"]).stdout
        for spark in slow.sparks
    ]
    assert hashes[0] == hashes[1]
    assert hashes[0].count("\n") == FILES + 4
    assert all(line.rpartition("/")[2] == line[:64] for line in hashes[1].splitlines() if "/blobs/" in line)
    assert target.run(["readlink", "-e", f"{HUB}/models--lab--large/snapshots/{'1' * 40}/config.json"]).stdout
    assert rails.bytes(source, sent=True) <= most(PAYLOAD)


def runs(spark, reference):
    words = ["docker", "run", "--rm", "--pull", "never", "--entrypoint", "python3", reference, "--version"]
    return "Python 3" in spark.run(words, check=False).stdout


@pytest.fixture
def bare(lab):
    """The Spark without the image."""
    target = lab.spark("target")
    yield target
    target.run(["sh", "-c", "docker image rm -f $(docker images -q)"], check=False)


@pytest.mark.parametrize(("point", "victim"), cases(VICTIMS, every=False))
def test_an_image(slow, cli, bare, point, victim):
    """What is loaded in part is Docker's, which keeps nothing of it; an operator's death loses nothing."""
    source, size = slow.sparks[0], images.archive("stub").stat().st_size
    reference = source.run(["docker", "images", "--format", "{{.Repository}}:{{.Tag}}"]).stdout.split()[0]
    assert size > LEAST_IMAGE
    for spark in slow.sparks:
        slow.fault(spark.name, "slow-link", f"{max(100, size // MB // 2)}mbit")  # 8 s over two rails
    with Rails(slow) as rails:
        first = cli.start("stage", slow.inventory, "image")
        killed(slow, first, victim, lambda: rails.bytes(source, sent=True) >= size * point / 100)
        before = rails.bytes(source, sent=True)
        if victim != "operator":
            assert not runs(bare, reference)
        cli("stage", slow.inventory, "image", timeout=180).ok()
    assert runs(bare, reference)
    assert rails.bytes(source, sent=True) <= most(size) + (before if victim != "operator" else 0)
