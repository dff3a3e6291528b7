"""A copy that was killed at ten points: the next run moves only the rest. Bytes are counted on the wire."""

from __future__ import annotations

import hashlib
import json
import random
import re
import time

import pytest
from staging_lab import HUB, MB, Rails, write_repository

from sparkcluster.lab import images
from sparkcluster.lab.engine.model import tiny_model_files
from sparkcluster.lab.machine import run
from tests.lab.hub import COMMIT, Hub
from tests.lab.test_bring_ray import STATE, engine_of, put_stub_ray_into

POINTS = range(5, 100, 10)
"""Percent of the bytes that were seen on the wire when a program is killed."""

VICTIMS = ("operator", "target", "source")
FILES, FILE_BYTES = 12, 8 * MB
PAYLOAD = FILES * FILE_BYTES
LEAST_IMAGE = 50 * MB
RAY_BYTES = 40 * MB
SHARDS, SHARD_BYTES = 24, 5 * MB // 2
DOWNLOAD_BYTES = SHARDS * SHARD_BYTES


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


def started(spark):
    """The programs of sparkcluster on ``spark``."""
    return set(spark.run(["pgrep", "-f", "^python3.*boot[[]'start']"], check=False).stdout.split())


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


@pytest.fixture
def slow_operators():
    """Slows the network from this machine to the Sparks of a lab; the lab."""
    devices = []

    def slow(lab):
        devices.append(lab.state.host_device)
        run(
            [
                "tc",
                "qdisc",
                "replace",
                "dev",
                devices[-1],
                "root",
                "tbf",
                "rate",
                "60mbit",
                "burst",
                "64kb",
                "latency",
                "50ms",
            ]
        )
        return lab

    yield slow
    for device in devices:
        run(["tc", "qdisc", "del", "dev", device, "root"])


@pytest.fixture(scope="module")
def without_ray(make_lab):
    return make_lab("defaults: {image: without-ray}\nsparks: [{name: one}, {name: two}]\n")


@pytest.mark.parametrize(("point", "victim"), cases(("operator", "one"), every=False))
def test_the_archive_of_ray(without_ray, slow_operators, make_cli, tmp_path, monkeypatch, point, victim):
    """It comes from this machine to one Spark, and from there to the other one."""
    lab, one = slow_operators(without_ray), without_ray.spark("one")
    cli, cache = make_cli(), tmp_path / "cache"
    monkeypatch.setenv("SPARKCLUSTER_CACHE", str(cache))
    cli("plan", lab.inventory).ok()  # looks into the image
    put_stub_ray_into(cache, engine_of(one), tmp_path, more_bytes=RAY_BYTES)
    with Rails(lab, management=True) as wire:
        first = cli.start("stage", lab.inventory, "image")
        killed(lab, first, victim, lambda: wire.bytes(one, sent=False) >= RAY_BYTES * point / 100, programs=started)
        cli("stage", lab.inventory, "image").ok()
    for spark in lab.sparks:
        assert spark.run(["sh", "-c", f"ls {STATE}/ray/*/ray/more.dat"], check=False).stdout.count("\n") == 1
        spark.run(["rm", "-rf", f"{STATE}/ray"])
    assert wire.bytes(one, sent=False) <= most(RAY_BYTES)


@pytest.fixture(scope="module")
def downloading(make_lab):
    """A Spark with the engine's image, which has the hub's client, and a hub with a model of many shards."""
    lab = make_lab("sparks: [{name: one}]\n", engine="vllm")
    head = json.dumps({"w": {"dtype": "U8", "shape": [SHARD_BYTES], "data_offsets": [0, SHARD_BYTES]}}).encode()
    random_bytes = random.Random(2).randbytes
    shards = {
        f"model-{at:05d}-of-{SHARDS:05d}.safetensors": len(head).to_bytes(8, "little")
        + head
        + random_bytes(SHARD_BYTES)
        for at in range(1, SHARDS + 1)
    }
    index = {"weight_map": {f"w{at}": name for at, name in enumerate(shards)}}
    tiny = {name: content for name, content in tiny_model_files().items() if name.endswith(".json")}
    large = {**tiny, **shards, "model.safetensors.index.json": json.dumps(index).encode()}
    with Hub(lab.sparks[0].state.gateway, {"lab/large": large}) as hub:
        yield lab, hub


def containers(spark):
    """The processes of its containers."""
    found = spark.run(["sh", "-c", "docker ps -q | xargs -r docker inspect -f '{{.State.Pid}}'"]).stdout
    return set(found.split()) - {"0"}


@pytest.mark.engine
@pytest.mark.full
@pytest.mark.parametrize(("point", "victim"), cases(("operator", "one"), every=False))
def test_a_download(downloading, make_cli, variant, point, victim):
    """By the hub's client, in a container. Where it is killed itself, the eight files that it was at begin again."""
    lab, hub = downloading
    one, cli, environment = lab.spark("one"), make_cli(), {"HF_ENDPOINT": hub.address}
    one.run(["rm", "-rf", HUB, f"{STATE}/models"])
    one.run(["sh", "-c", f"echo export HF_ENDPOINT={hub.address} > /root/.bashrc"])
    inventory = variant(lab, playbook={"model": {"path": None, "id": "lab/large"}})
    hub.sent_bytes, hub.rate_bytes_s = 0, 10 * MB
    first = cli.start("stage", inventory, "weights", env=environment)
    killed(lab, first, victim, lambda: hub.sent_bytes >= DOWNLOAD_BYTES * point / 100, programs=containers)
    cli("stage", inventory, "weights", env=environment, timeout=180).ok()
    snapshot = f"{HUB}/models--lab--large/snapshots/{COMMIT}"
    found = one.run(["sh", "-c", f"cd {snapshot} && sha256sum model-*.safetensors"]).stdout.split()
    served = hub.repositories["lab/large"]
    assert dict(zip(found[1::2], found[::2], strict=True)) == {
        name: hashlib.sha256(served[name]).hexdigest() for name in sorted(served) if name.endswith(".safetensors")
    }
    begun_again = 8 * SHARD_BYTES if victim == "one" else 0
    assert hub.sent_bytes <= most(DOWNLOAD_BYTES + begun_again)
