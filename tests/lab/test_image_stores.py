"""Copies of images between both of Docker's image stores, and the image whose layers containerd never downloaded."""

from __future__ import annotations

import pytest

from sparkcluster.lab import images

STORES = """
sparks:
- {name: c1, docker: containerd%s, image: absent}
- {name: c2, docker: containerd%s, image: absent}
- {name: o, docker: overlay2%s, image: absent}
"""


@pytest.fixture(scope="module", params=["", pytest.param("-28", marks=pytest.mark.full)])
def shared_lab(make_mixed_lab, request):
    return make_mixed_lab(STORES % ((request.param,) * 3))


@pytest.fixture
def stage(lab, cli, variant):
    """Runs ``stage`` of an image on Sparks in this order: which came from where, by node."""
    hosts = {spark.name: spark.host for spark in lab.sparks}

    def run(reference, *names):
        nodes = [{"name": name, "host": hosts[name], "connection": "ssh"} for name in names]
        inventory = variant(lab, nodes=nodes, groups=None, playbook={"image": reference})
        done = cli("stage", inventory, "image", "--json", timeout=200)
        return done, {each["node"]: each["source"] for each in done.json.get("copied", ())} if done.out else {}

    return run


def runs(spark, reference):
    words = ["docker", "run", "--rm", "--pull", "never", "--entrypoint", "python3", reference, "--version"]
    return spark.run(words).stdout.startswith("Python 3")


@pytest.mark.full
def test_an_image_of_two_platforms_reaches_every_pair_of_stores_and_runs_there(lab, registry, stage):
    """Pulled once, then containerd to both stores; then back from overlay2, and from a copy to the other."""
    reference = registry.add("two", images.archive("stub"), platforms=True)
    assert stage(reference, "c1")[1] == {"c1": "download"}
    registry.down = True
    for source, target in (("c1", "o"), ("c1", "c2"), ("o", "c1"), ("c2", "o"), ("o", "c2")):
        lab.spark(target).run(["docker", "image", "rm", "-f", reference], check=False)
        done, copied = stage(reference, source, target)
        done.ok()
        assert copied == {target: source}
        assert runs(lab.spark(target), reference)


def twice(lab, registry, name):
    """On ``name``, two images with common layers, which the registry has compressed otherwise; the second one."""
    spark = lab.spark(name)
    first = registry.add("p1", images.archive("stub"), level=1)
    second = registry.add("p9", images.archive("stub"), level=2, more="p9")
    for reference in (first, second):
        spark.run(["docker", "pull", "--quiet", reference])
    return second


@pytest.mark.full
@pytest.mark.parametrize("target", ["o", "c2"])
def test_an_image_whose_layers_another_one_has_otherwise_compressed_reaches_the_other_node(
    lab, registry, stage, target
):
    """containerd#8973: docker save writes its manifest alone, so the other node pulls it."""
    reference = twice(lab, registry, "c1")
    done, copied = stage(reference, "c1", target)
    done.ok()
    assert copied[target] == "download"
    assert runs(lab.spark(target), reference)


@pytest.mark.full
def test_without_a_registry_it_is_an_error_that_names_the_node_and_the_cause(lab, registry, stage):
    reference = twice(lab, registry, "c1")
    registry.down = True
    done, _ = stage(reference, "c1", "o")
    assert done.code == 1
    said = done.out + done.err  # Docker 28 lists the image by name alone, so that it is on no node
    assert "the image's archive lacks" in said or "no node has the image" in said
