"""Images are copied between the stores of real Docker engines; if a Spark has all layers except the top one, only that layer is copied."""

from __future__ import annotations

import random
import re

import pytest

from sparkcluster.lab import images

SPARKS = """
sparks:
- {name: o, image: absent}
- {name: c, docker: containerd, image: absent}
- {name: o26, system: debian-13, image: absent}
- {name: o28, system: debian-14, image: absent}
- {name: c28, system: debian-14, docker: containerd, image: absent}
"""
RAILS = "cat /sys/class/net/enp1s0f1np1/statistics/%s_bytes /sys/class/net/enP2p1s0f1np1/statistics/%s_bytes"
TOP_BYTES = 8_000_000


@pytest.fixture(scope="module")
def shared_lab(make_mixed_lab):
    return make_mixed_lab(SPARKS)


def top(seed):
    """Text of a nearly incompressible layer."""
    return random.Random(seed).randbytes(TOP_BYTES // 2).hex()


@pytest.fixture
def update(lab, registry, cli, variant):
    """Puts an image on two Sparks, and on the first one an image with the same name and layers except the top one.

    Returns a function that starts ``stage`` of it on both.
    """
    hosts = {spark.name: spark.host for spark in lab.sparks}

    def make(source, target):
        nodes = [{"name": name, "host": hosts[name], "connection": "ssh"} for name in (source, target)]
        old = registry.add("old", images.archive("stub"), more=top(1))
        new = registry.add("new", images.archive("stub"), more=top(2))
        inventory = variant(lab, nodes=nodes, groups=None, playbook={"image": old})
        cli("stage", inventory, "image", "--json").ok()
        lab.spark(source).run(["docker", "pull", "--quiet", new], timeout_s=120)
        registry.down = True
        inventory = variant(lab, nodes=nodes, groups=None, playbook={"image": new})
        return old, new, lambda *words: cli.start("stage", inventory, "image", *words)

    return make


def bytes_on_rails(spark, way):
    return sum(map(int, spark.run(["sh", "-c", RAILS % (way, way)]).stdout.split()))


def runs(spark, reference):
    words = ["docker", "run", "--rm", "--pull", "never", "--entrypoint", "python3", reference, "--version"]
    return spark.run(words, timeout_s=60).stdout.startswith("Python 3")


@pytest.mark.full
@pytest.mark.parametrize("source", ["o", "o26", "c", "o28", "c28"])
def test_an_image_is_copied_from_each_kind_of_store_to_all_others_and_starts(lab, registry, cli, variant, source):
    reference = registry.add("whole", images.archive("stub"), more=source)
    lab.spark(source).run(["docker", "pull", "--quiet", reference], timeout_s=120)
    registry.down = True
    cli("stage", variant(lab, playbook={"image": reference}), "image").ok()
    content = "{{json .Config.Labels}} {{json .RootFS.Layers}}"
    inspect = ["docker", "image", "inspect", "--format", content, reference]
    assert len({spark.run(inspect).stdout for spark in lab.sparks}) == 1, "labels and layers"
    assert all(runs(spark, reference) for spark in lab.sparks)


@pytest.mark.full
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("c", "o"),
        ("o26", "c"),
    ],
)
def test_a_changed_top_layer_copies_only_that_layer(lab, update, source, target):
    old, new, stage = update(source, target)
    sparks = [lab.spark(name) for name in (source, target)]
    before = [bytes_on_rails(spark, way) for spark, way in zip(sparks, ("tx", "rx"), strict=True)]
    done = stage().wait().ok()
    assert re.search(
        rf"{target}: gets (at most )?[\d.]+ of [\d.]+ [GM]B of the image: it has \d+ of \d+ layers", done.err
    )
    moved = [bytes_on_rails(spark, way) for spark, way in zip(sparks, ("tx", "rx"), strict=True)]
    for first, last in zip(before, moved, strict=True):
        assert last - first <= 1.05 * TOP_BYTES + 5_000_000
    assert runs(sparks[1], new)
    assert runs(sparks[1], old)
    saved = sparks[1].run(["sh", "-c", f"docker save {new} | tar t | grep -cE 'blobs/sha256/.|layer.tar'"]).stdout
    assert int(saved) >= 2  # the previous layer, and the new one


def has(spark, reference):
    return spark.run(["docker", "image", "inspect", reference], check=False).returncode == 0


@pytest.mark.full
def test_an_interrupted_image_copy_leaves_no_partial_image(lab, update):
    """The running image is kept, the new name does not exist, and the next run copies the missing layers."""
    old, new, stage = update("o", "c")
    spark = lab.spark("c")
    lab.fault("o", "slow-link", "20mbit")
    running = stage()
    running.wait_for("GB from o")
    spark.run(["pkill", "-KILL", "-f", "worker"])
    assert running.wait().code != 0
    lab.heal("o")
    assert not has(spark, new)
    assert runs(spark, old)
    stage().wait().ok()
    assert runs(spark, new)
