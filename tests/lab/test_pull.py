"""Pulls on virtual Sparks with both image stores, from a registry that is slow, interrupted, or requires a login."""

from __future__ import annotations

import re
import signal
import time

import pytest
from lab_registry import registry_of

from sparkcluster.lab import images
from sparkcluster.lab.machine import wait_until

pytestmark = pytest.mark.full
PULLING = r"image [\d.]+ (of [\d.]+ )?[GM]B downloaded, [\d.]+ MB/s"


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab("sparks: [{name: plain, image: absent}, {name: store, docker: containerd, image: absent}]\n")


# An ended pull keeps its data for a day, by a lease in containerd.
REMOVE = """
docker image rm -f $(docker images -q)
ctr="ctr --address /run/docker/containerd/containerd.sock --namespace moby leases"
for lease in $($ctr ls --quiet); do $ctr rm --sync $lease; done
"""


@pytest.fixture
def registry(lab):
    """Each test has only the images of its registry: earlier images are removed."""
    with registry_of(lab) as made:
        yield made
    for spark in lab.sparks:
        spark.run(["sh", "-c", REMOVE], check=False)


@pytest.fixture
def stage(lab, cli, variant):
    """Starts ``stage`` of an image on one Spark."""

    def start(name, reference):
        host = next(spark.host for spark in lab.sparks if spark.name == name)
        nodes = [{"name": name, "host": host, "connection": "ssh"}]
        return cli.start("stage", variant(lab, nodes=nodes, playbook={"image": reference}), "image")

    return start


def size_of(registry):
    """Bytes of all blobs of the only image."""
    return sum(file.stat().st_size for file in registry._directory.glob("sha256:*"))


def goes_on(registry, pause_s=1.5):
    before = registry.served_bytes
    time.sleep(pause_s)
    return registry.served_bytes > before


@pytest.mark.parametrize("name", ["plain", "store"])
def test_bytes_and_rate_are_reported_while_an_image_is_pulled(registry, stage, name):
    reference = registry.add("slow", images.archive("stub"), platforms=True)
    registry.rate_bytes_s = size_of(registry) / 12
    done = stage(name, reference).wait().ok()
    assert len(re.findall(PULLING, done.err)) >= 2, done.err
    assert re.search(PULLING + r", [\d.]+ s left", done.err), done.err
    assert re.search(rf"image  \S+: {name} downloaded", done.out), done.out


@pytest.mark.parametrize("name", ["plain"])
def test_a_pull_outlives_the_operator_and_the_next_stage_follows_it(registry, stage, name):
    reference = registry.add("killed", images.archive("stub"))
    registry.rate_bytes_s = size_of(registry) / 12
    first = stage(name, reference)
    first.wait_for("B downloaded")
    first.kill(signal.SIGKILL)
    assert goes_on(registry)
    stage(name, reference).wait().ok()
    assert registry.served_bytes < 1.05 * size_of(registry)


@pytest.mark.parametrize("name", ["plain"])
def test_ctrl_c_ends_a_pull_on_the_node(registry, stage, name):
    reference = registry.add("interrupted", images.archive("stub"))
    registry.rate_bytes_s = size_of(registry) / 20
    first = stage(name, reference)
    first.wait_for("B downloaded")
    assert wait_until(lambda: registry.served_bytes > size_of(registry) / 4, limit_s=120)
    first.kill(signal.SIGINT)
    first.wait()
    assert wait_until(lambda: not goes_on(registry, 1.0), limit_s=120)
    registry.rate_bytes_s = None
    stage(name, reference).wait().ok()


@pytest.mark.parametrize("name", ["plain"])
def test_a_pull_survives_a_temporary_outage_of_the_registry(registry, stage, name):
    reference = registry.add("cut", images.archive("stub"))
    registry.rate_bytes_s = size_of(registry) / 6
    registry.cut_after_bytes = size_of(registry) // 3
    running = stage(name, reference)
    assert wait_until(lambda: registry.down, limit_s=120)
    time.sleep(3)
    registry.rate_bytes_s, registry.cut_after_bytes, registry.down = None, None, False
    running.wait().ok()


@pytest.mark.parametrize("name", ["store"])
def test_a_docker_login_of_the_nodes_user_is_used(lab, registry, stage, name):
    reference = registry.add("private", images.archive("stub"))
    registry.login = ("ada", "very-secret")
    failed = stage(name, reference).wait()
    assert failed.code == 1
    assert f"requires a login on {name}" in failed.err
    assert f"docker login {registry.address}" in failed.err
    spark = next(spark for spark in lab.sparks if spark.name == name)
    spark.run(["docker", "login", "--username", "ada", "--password", "very-secret", registry.address])
    try:
        done = stage(name, reference).wait().ok()
    finally:
        spark.run(["docker", "logout", registry.address])
    assert "very-secret" not in done.out + done.err
