"""Which nodes lack an artifact, and which have it: as a function."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex

import pytest

from sparkcluster.errors import StageError
from sparkcluster.facts.docker import Image
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.staging.copy import Failure, Step, stage_error
from sparkcluster.staging.plan import check_disk_space, digest_to_pull, find_missing, no_weights
from sparkcluster.staging.run import find
from sparkcluster.staging.transfers import Transfers
from sparkcluster.topology.build import build

HOSTS = {"a": "spark-a", "b": "spark-b", "c": "spark-c"}
WHOLE = {
    "path": "/w",
    "revision": "r1",
    "files": [{"name": "config.json", "size_bytes": 10}, {"name": "m.safetensors", "size_bytes": 5_000_000_000}],
}


@pytest.fixture
def three(spark, cluster):
    """Facts of three nodes on one switch, changed by node name, and the spec."""

    def make(changes=None, **more):
        changes = changes or {}
        facts = {
            name: spark(
                {"enp1s0f0np0": f"10.1.0.{place}/24", "enP2p1s0f0np0": f"10.2.0.{place}/24"},
                management=f"192.168.86.{place}/24",
                **changes.get(name, {}),
            )
            for place, name in enumerate(HOSTS, 11)
        }
        spec = cluster(HOSTS, **more)
        return facts, build(spec, facts), spec

    return make


def test_missing_files_are_listed_per_node(three):
    cut = {**WHOLE, "missing": ["x.safetensors", "y"], "truncated": ["m.safetensors"]}
    staging = find_missing(*three({"b": {"weights": WHOLE}, "c": {"weights": cut}}), "weights")
    assert staging.sources == ("b",)
    assert staging.missing == (("a", "missing"), ("c", "x.safetensors missing and 2 more"))
    assert staging.download == ()
    assert staging.size_bytes == 5_000_000_010


def test_a_revision_that_differs_from_the_heads_is_missing(three):
    other = {**WHOLE, "revision": "r2"}
    staging = find_missing(
        *three({"a": {"weights": WHOLE}, "b": {"weights": other}, "c": {"weights": WHOLE}}), "weights"
    )
    assert staging.sources == ("a", "c")
    assert staging.missing == (("b", "revision r2 instead of r1"),)


def test_with_a_pinned_commit_only_copies_of_it_are_sources(three):
    pinned, other = ({**WHOLE, "revision": letter * 40} for letter in "ab")
    facts, topology, spec = three({"a": {"weights": other}, "b": {"weights": pinned}, "c": {}})
    model = spec.playbook.model.model_copy(update={"revision": "a" * 40})
    spec = dataclasses.replace(spec, playbook=spec.playbook.model_copy(update={"model": model}))
    assert find_missing(facts, topology, spec, "weights").sources == ("b",)


IMAGE = {"reference": "i", "id": "sha256:1", "layers": ["l1"], "size_bytes": 9}
CONTAINERD = {
    "version": "29",
    "storage_driver": "overlayfs",
    "root_dir": "/d",
    "runtimes": [],
    "containerd_store": True,
}


def test_a_different_image_with_the_same_name_is_missing_but_not_a_different_id_in_containerds_store(three):
    world = three(
        {
            "a": {"image": IMAGE},
            "b": {"image": {**IMAGE, "id": "sha256:2"}, "docker": CONTAINERD},
            "c": {"image": {**IMAGE, "id": "sha256:3", "layers": ["l9"]}},
        }
    )
    staging = find_missing(*world, "image")
    assert (staging.sources, staging.missing) == (("a", "b"), (("c", "has another image with this name"),))


DIGEST = "i@sha256:" + "d" * 64
ONE, TWO = ({**IMAGE, "id": f"sha256:{number}", "layers": [f"l{number}"]} for number in (1, 2))
PULLED = {**TWO, "digest": DIGEST}


BUILDS = [Image.model_validate(each).build for each in (ONE, TWO)]


@pytest.mark.parametrize(
    ("reference", "kept", "image_build", "have", "sources"),
    [
        ("i", True, BUILDS[1], [ONE, TWO, TWO], "bc"),
        ("i", True, "sha256:9", [ONE, ONE, TWO], None),
        ("i", True, "", [ONE, TWO, TWO], None),
        (DIGEST, False, "", [ONE, PULLED, ONE], "b"),
        (DIGEST, False, BUILDS[1], [ONE, None, TWO], "c"),
        (DIGEST, False, BUILDS[0], [PULLED, ONE, None], "b"),
        (DIGEST, False, "sha256:9", [ONE, None, TWO], ""),
        (DIGEST, False, "", [ONE, None, ONE], "ac"),
        ("i", False, BUILDS[1], [None, ONE, TWO], "c"),
        ("i", False, BUILDS[1], [ONE, TWO, TWO], "a"),
        # a node that reports another image's ID does not have the image
        ("i", True, BUILDS[1], [{**ONE, "id": TWO["id"]}, TWO, None], "b"),
    ],
)
def test_a_node_with_an_unexpected_image_lacks_it_and_is_no_source(three, reference, kept, image_build, have, sources):
    """For a release the recorded image; for a digest nodes with it or staged by it; for a tag the head's, if any."""
    facts, topology, spec = three({name: {"image": each} for name, each in zip(HOSTS, have, strict=True)})
    playbook = spec.playbook.model_copy(update={"image": reference})
    kept_image_name = "sparkcluster/atlas:000007" if kept else None
    spec = dataclasses.replace(spec, playbook=playbook, kept_image_name=kept_image_name, image_build=image_build)
    if sources is None:
        with pytest.raises(StageError, match="the image of release 7 was removed from all nodes"):
            find_missing(facts, topology, spec, "image")
        return
    staging = find_missing(facts, topology, spec, "image")
    assert (staging.sources, staging.download) == (tuple(sources), () if sources else ("a", "b", "c"))
    others = [name for name, each in zip(HOSTS, have, strict=True) if each and name not in sources]
    assert [name for name, lacks in staging.missing if lacks == "has another image with this name"] == others


def test_the_head_first_downloads_files_that_no_node_has(three):
    staging = find_missing(*three({name: {"image": None} for name in HOSTS}), "image")
    assert (staging.sources, staging.download) == ((), ("a", "b", "c"))
    assert find_missing(*three(), "weights").download == ("a", "b", "c")


def test_a_directory_that_no_node_has_is_an_error_with_the_command_to_type(three):
    facts, topology, spec = three(playbook={"model": {"path": "/models/a b"}})
    transfers = Transfers(Fleet({}), facts, topology, dict, print)
    with pytest.raises(StageError, match="the weights of /models/a b are not on any node") as caught:
        find(transfers, spec, ["weights"])
    assert caught.value.node == "a"
    assert caught.value.hint == "copy them: rsync -a DIRECTORY/ 'nvidia@spark-a:/models/a b/'"


def test_values_from_nodes_are_quoted_in_hints(three):
    """They are pasted into a shell: values chosen by a node stay one word each."""
    hostile = "x; touch /tmp/pwned `id` $(id)"
    small = [{"purpose": "hf_home", "path": f"/{hostile}", "total_bytes": 10, "free_bytes": 4}]
    facts, topology, spec = three({"a": {"weights": WHOLE}, "b": {"disks": small}})
    with pytest.raises(StageError) as caught:
        check_disk_space(facts, find_missing(facts, topology, spec, "weights"))
    assert shlex.split(caught.value.hint.partition("; or on b: ")[2]) == ["du", "-sh", f"/{hostile}/*"]
    facts, topology, of_path = three({"a": {"user": hostile}}, playbook={"model": {"path": "/models/x"}})
    with pytest.raises(StageError) as caught:
        find(Transfers(Fleet({}), facts, topology, dict, print), of_path, ["weights"])
    assert shlex.split(caught.value.hint.partition(": ")[2]) == [
        "rsync", "-a", "DIRECTORY/", f"{hostile}@spark-a:/models/x/",
    ]  # fmt: skip
    hint = str(no_weights(three({"a": {"hf_home": f"/{hostile}"}})[0], "a", spec).hint)
    assert shlex.split(hint.partition(": ")[2])[:3] == [f"HF_HOME=/{hostile}", "hf", "download"]
    said = stage_error(Step("stage weights", {}, lambda: False), Failure("a", "permission", f"no: /{hostile}"))
    assert shlex.split(str(said.hint))[:3] == ["ls", "-ld", f"/{hostile}"]


def test_all_disks_that_are_too_small_are_reported(three):
    small = [{"purpose": "hf_home", "path": "/home", "total_bytes": 10, "free_bytes": 4_000_000_000}]
    facts, topology, spec = three({"a": {"weights": WHOLE}, "b": {"disks": small}, "c": {"disks": small}})
    with pytest.raises(StageError) as caught:
        check_disk_space(facts, find_missing(facts, topology, spec, "weights"))
    errors = [caught.value, *caught.value.others]
    assert [(error.node, error.hint) for error in errors] == [
        (node, f"sparkcluster models INVENTORY --prune; or on {node}: du -sh /home/*") for node in "bc"
    ]


@pytest.mark.parametrize(("containerd", "needed"), [(False, "40.0"), (True, "80.0")])
def test_the_free_space_for_an_image_depends_on_the_store_of_its_source(three, containerd, needed):
    """containerd's store reports the size of compressed layers."""
    small = [{"purpose": "docker", "path": "/d", "total_bytes": 10, "free_bytes": 39 * 10**9}]
    facts, topology, spec = three({"b": {"disks": small, "image": None}})
    engine = facts["a"].docker.model_copy(update={"containerd_store": containerd})
    facts["a"] = facts["a"].model_copy(update={"docker": engine})
    with pytest.raises(StageError, match=rf"b has 39\.0 GB free at /d but needs {needed} GB for image"):
        check_disk_space(facts, find_missing(facts, topology, spec, "image"))


@pytest.mark.parametrize(
    ("containerd", "state", "docker", "fits"),
    [
        (False, 41, 41, True),  # one file system, and twice the image
        (False, 39, 39, False),
        (True, 21, 21, True),
        (False, 21, 22, True),  # two of them
        (False, 19, 22, False),
        (False, 22, 19, False),
    ],
)
def test_a_node_that_sends_an_image_needs_space_for_the_archive_and_the_files(three, containerd, state, docker, fits):
    sizes = {"state": state, "docker": docker}
    disks = [
        {"purpose": name, "path": f"/{name}", "total_bytes": 100, "free_bytes": free * 10**9}
        for name, free in sizes.items()
    ]
    engine = {**CONTAINERD, "containerd_store": containerd}
    changes = {
        "a": {"disks": disks, "image": {**IMAGE, "size_bytes": 20 * 10**9}, "docker": engine},
        "b": {"image": None},
    }
    facts, topology, spec = three({**changes, "c": {"image": None}})
    staging = find_missing(facts, topology, spec, "image")
    lacks = pytest.raises(StageError, match=r"a has .* but needs [24]0\.0 GB for sending image")
    with contextlib.nullcontext() if fits else lacks:
        check_disk_space(facts, staging)


PIN, OTHER = "vllm/vllm-openai@sha256:" + "a" * 64, "registry.internal/private/x@sha256:" + "e" * 64


@pytest.mark.parametrize(
    ("image", "digest", "pulled"),
    [
        ("docker.io/vllm/vllm-openai:v1", PIN, PIN),
        ("vllm/vllm-openai:v1", OTHER, None),
        (PIN, PIN.replace("a" * 64, "b" * 64), None),
    ],
)
def test_a_node_cannot_choose_the_repository_from_which_another_pulls(image, digest, pulled):
    assert digest_to_pull(image, digest) == pulled
