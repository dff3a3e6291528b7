"""Docker's two image stores on virtual Sparks, and the lab's registry: what Docker itself says of them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
import tarfile

import pytest

from sparkcluster.lab.machine import wait_until

SIZE = 30_000_000
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
SPEC = """
sparks:
- {name: plain}
- {name: store, docker: containerd}
"""
NEWER = """
sparks:
- {name: plain, docker: overlay2-28}
- {name: store, docker: containerd-28}
"""


@pytest.fixture(scope="module")
def shared_lab(make_mixed_lab):
    return make_mixed_lab(SPEC)


@pytest.fixture
def registry(lab):
    with lab.registry() as made:
        yield made
        script = f"docker image rm $(docker images --format '{{{{.Repository}}}}:{{{{.Tag}}}}' | grep {made.address})"
        for spark in lab.sparks:
            spark.run(["sh", "-c", script], check=False)


def docker(spark, *words):
    return spark.run(["docker", *words]).stdout.strip()


def pull(spark, reference):
    """A pull under way."""
    words = spark.enter(["docker", "pull", "--quiet", reference])
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended(process):
    """Exit code and output of a pull."""
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def has_the_image(spark):
    reference = docker(spark, "images", "--format", "{{.Repository}}:{{.Tag}}")
    return docker(spark, "run", "--rm", "--entrypoint", "python3", reference, "--version").startswith("Python 3")


def test_both_stores_have_the_image_and_keep_it_over_a_reboot(lab):
    plain, store = lab.sparks
    drivers = [docker(spark, "info", "--format", "{{.Driver}} {{.DriverStatus}}") for spark in lab.sparks]
    assert drivers[0].startswith("overlay2 ")
    assert "io.containerd.snapshotter.v1" in drivers[1]
    assert has_the_image(plain)
    assert has_the_image(store)
    lab.fault("store", "reboot")
    assert has_the_image(store)


@pytest.mark.full
def test_docker_28_has_both_stores(make_mixed_lab):
    lab = make_mixed_lab(NEWER)
    assert {docker(spark, "version", "--format", "{{.Server.Version}}")[:3] for spark in lab.sparks} == {"28."}
    drivers = [docker(spark, "info", "--format", "{{.Driver}}") for spark in lab.sparks]
    assert drivers == ["overlay2", "overlayfs"]
    assert [has_the_image(spark) for spark in lab.sparks] == [True, True]


@pytest.fixture
def archive(tmp_path):
    """An image of 30 MB like no other: what is pulled of it can have come only from the registry."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as layer:
        add(layer, "content", os.urandom(SIZE))
    config = {"os": "linux", "architecture": ARCHITECTURE, "config": {}}
    config["rootfs"] = {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(tar.getvalue()).hexdigest()]}
    path = tmp_path / "image.tar"
    with tarfile.open(path, "w") as file:
        add(file, "config.json", json.dumps(config).encode())
        add(file, "layer.tar", tar.getvalue())
        add(file, "manifest.json", json.dumps([{"Config": "config.json", "Layers": ["layer.tar"]}]).encode())
    return path


def add(file, name, content):
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    file.addfile(entry, io.BytesIO(content))


def test_an_image_of_two_platforms_is_pulled_into_both_stores(lab, registry, archive):
    reference = registry.add("two", archive, platforms=True)
    pulls = [pull(spark, reference) for spark in lab.sparks]
    assert [ended(process) for process in pulls] == [(0, reference + "\n")] * 2
    assert 2 * SIZE < registry.served_bytes < 2.1 * SIZE
    form = "{{.Architecture}} {{len .RootFS.Layers}}"
    for spark in lab.sparks:
        assert docker(spark, "image", "inspect", "--format", form, reference) == f"{ARCHITECTURE} 1"
    index = docker(lab.sparks[1], "image", "inspect", "--format", "{{.Id}}", reference)
    assert registry.manifest("two", "1") == (index, "application/vnd.oci.image.index.v1+json")


def slow_then_cut(registry):
    registry.rate_bytes_s, registry.cut_after_bytes = 10e6, SIZE // 3


def as_before(registry):
    registry.rate_bytes_s, registry.cut_after_bytes, registry.down = None, None, False


def test_a_cut_ends_a_pull_and_the_next_one_brings_at_most_the_whole(lab, registry, archive):
    """containerd begins it with what the first one left; on a busy machine that may be nothing."""
    store = lab.sparks[1]
    reference = registry.add("cut", archive)
    slow_then_cut(registry)
    code, output = ended(pull(store, reference))
    assert code == 1, output
    assert registry.served_bytes == pytest.approx(SIZE / 3, rel=0.05)
    as_before(registry)
    before = registry.served_bytes
    assert ended(pull(store, reference))[0] == 0
    assert SIZE < registry.served_bytes < 1.05 * SIZE + before


def test_in_the_overlay2_store_the_same_pull_goes_on_when_the_registry_is_back(lab, registry, archive):
    plain = lab.sparks[0]
    reference = registry.add("back", archive)
    slow_then_cut(registry)
    process = pull(plain, reference)
    assert wait_until(lambda: registry.down, limit_s=30)
    as_before(registry)
    code, output = ended(process)
    assert code == 0, output
    assert SIZE < registry.served_bytes < 1.2 * SIZE


def test_silence_spares_the_registry(lab, registry, archive):
    lab.fault("store", "silence")
    assert ended(pull(lab.sparks[1], registry.add("silent", archive)))[0] == 0
