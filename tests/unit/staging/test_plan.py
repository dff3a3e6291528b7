"""Who lacks what, and who has it: pure."""

from __future__ import annotations

import shlex

import pytest

from sparkcluster.errors import StageError
from sparkcluster.node.common import staged_as
from sparkcluster.node.shared import registry_of
from sparkcluster.staging.again import Step
from sparkcluster.staging.copy import Failure, stage_error
from sparkcluster.staging.plan import check_disk_space, digest_to_pull, find_missing, no_weights
from sparkcluster.topology.build import build

HOSTS = {"a": "spark-a", "b": "spark-b", "c": "spark-c"}
WHOLE = {
    "path": "/w",
    "revision": "r1",
    "files": [{"name": "config.json", "size_bytes": 10}, {"name": "m.safetensors", "size_bytes": 5_000_000_000}],
}


@pytest.fixture
def three(spark, cluster):
    """Facts of three nodes on one switch, changed by name of node, and the spec."""

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


def test_what_each_node_lacks_is_listed(three):
    cut = {**WHOLE, "missing": ["x.safetensors", "y"], "truncated": ["m.safetensors"]}
    staging = find_missing(*three({"b": {"weights": WHOLE}, "c": {"weights": cut}}), "weights")
    assert staging.sources == ("b",)
    assert staging.missing == (("a", "missing"), ("c", "x.safetensors missing and 2 more"))
    assert staging.download == ()
    assert staging.size_bytes == 5_000_000_010


def test_a_revision_other_than_the_heads_is_missing(three):
    other = {**WHOLE, "revision": "r2"}
    staging = find_missing(
        *three({"a": {"weights": WHOLE}, "b": {"weights": other}, "c": {"weights": WHOLE}}), "weights"
    )
    assert staging.sources == ("a", "c")
    assert staging.missing == (("b", "revision r2 instead of r1"),)


def test_another_complete_commit_is_named_and_how_to_serve_it(three):
    """Bundled playbooks name commits; without a network, what lies there is all there is."""
    old, new = "a" * 40, "b" * 40
    other = {"path": None, "other_revisions": [old]}
    facts, topology, spec = three({"a": {"weights": other}}, playbook={"model": {"id": "org/m", "revision": new}})
    found = find_missing(facts, topology, spec, "weights")
    assert found.missing == (("a", f"has revision {old}, not {new}"), ("b", "missing"), ("c", "missing"))
    hint = no_weights(facts, "a", spec, why="huggingface.co cannot be reached").hint
    lines = f"extends: {spec.playbook.name} and model: {{id: org/m, revision: {old}}}"
    serve = f"; or serve the weights that are there, by a playbook with {lines}"
    assert str(hint).endswith(f"hf download org/m --revision {new}{serve}")


IMAGE = {"reference": "i", "id": "sha256:1", "layers": ["l1"], "size_bytes": 9}
CONTAINERD = {
    "version": "29",
    "storage_driver": "overlayfs",
    "root_dir": "/d",
    "runtimes": [],
    "containerd_store": True,
}


def test_another_image_under_the_same_name_is_missing_and_another_id_in_containerds_store_is_not(three):
    world = three(
        {
            "a": {"image": IMAGE},
            "b": {"image": {**IMAGE, "id": "sha256:2"}, "docker": CONTAINERD},
            "c": {"image": {**IMAGE, "id": "sha256:3", "layers": ["l9"]}},
        }
    )
    staging = find_missing(*world, "image")
    assert (staging.sources, staging.missing) == (("a", "b"), (("c", "another image has its name"),))


def test_the_head_downloads_first_what_no_node_has(three):
    staging = find_missing(*three({name: {"image": None} for name in HOSTS}), "image")
    assert (staging.sources, staging.download) == ((), ("a", "b", "c"))
    assert find_missing(*three(), "weights").download == ("a", "b", "c")


def test_a_directory_that_no_node_has_is_an_error_with_the_command(three):
    world = three(playbook={"model": {"path": "/models/a b"}})
    with pytest.raises(StageError, match="the weights of /models/a b are on no node") as caught:
        find_missing(*world, "weights")
    assert caught.value.node == "a"
    assert caught.value.hint == "put them there: rsync -a DIRECTORY/ 'nvidia@spark-a:/models/a b/'"


def test_what_nodes_said_is_quoted_in_hints(three):
    """They are pasted into a shell: the words that a node chose stay one word each."""
    hostile = "x; touch /tmp/pwned `id` $(id)"
    small = [{"purpose": "hf_home", "path": f"/{hostile}", "total_bytes": 10, "free_bytes": 4}]
    facts, topology, spec = three({"a": {"weights": WHOLE}, "b": {"disks": small}})
    with pytest.raises(StageError) as caught:
        check_disk_space(facts, find_missing(facts, topology, spec, "weights"), spec)
    assert shlex.split(caught.value.hint.partition("; or ")[2]) == ["du", "-sh", f"/{hostile}/*", "on", "b"]
    with pytest.raises(StageError) as caught:
        find_missing(*three({"a": {"user": hostile}}, playbook={"model": {"path": "/models/x"}}), "weights")
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
        check_disk_space(facts, find_missing(facts, topology, spec, "weights"), spec)
    errors = [caught.value, *caught.value.others]
    assert [(error.node, error.hint) for error in errors] == [
        (node, f"sparkcluster models INVENTORY --prune; or du -sh /home/*   on {node}") for node in "bc"
    ]


@pytest.mark.parametrize(("containerd", "needed"), [(False, "40.0"), (True, "80.0")])
def test_room_for_an_image_depends_on_the_store_it_comes_from(three, containerd, needed):
    """containerd's reports the size of compressed layers."""
    small = [{"purpose": "docker", "path": "/d", "total_bytes": 10, "free_bytes": 39 * 10**9}]
    facts, topology, spec = three({"b": {"disks": small, "image": None}})
    engine = facts["a"].docker.model_copy(update={"containerd_store": containerd})
    facts["a"] = facts["a"].model_copy(update={"docker": engine})
    with pytest.raises(StageError, match=rf"b has 39\.0 GB free at /d, and image .* need {needed} GB"):
        check_disk_space(facts, find_missing(facts, topology, spec, "image"), spec)


@pytest.mark.parametrize(("free", "docker", "enough"), [(19, {}, False), (19, {"docker": CONTAINERD}, True)])
def test_a_sender_needs_room_for_the_archive(three, free, docker, enough):
    """docker save of an engine's own store writes all of it first."""
    whole = {**IMAGE, "size_bytes": 20 * 10**9}
    small = [{"purpose": "docker", "path": "/d", "total_bytes": 10, "free_bytes": free * 10**9}]
    facts, topology, spec = three({"a": {"image": whole, "disks": small, **docker}, "b": {"image": None}})
    staging = find_missing(facts, topology, spec, "image")
    if enough:
        check_disk_space(facts, staging, spec)
    else:
        with pytest.raises(StageError, match=r"a has 19\.0 GB free at /d, and docker save writes") as caught:
            check_disk_space(facts, staging, spec)
        assert caught.value.node == "a"


@pytest.mark.parametrize(("free", "enough"), [(9, False), (11, True)])
def test_layers_that_are_there_need_no_room(three, free, enough):
    """Of 20 GB 15 are in another image: the other 5, twice."""
    small = [{"purpose": "docker", "path": "/d", "total_bytes": 10, "free_bytes": free * 10**9}]
    layers = [f"sha256:{letter * 64}" for letter in "ab"]
    files = [{"digest": layer[7:], "bytes": size * 10**9} for layer, size in zip(layers, (15, 5), strict=True)]
    facts, topology, spec = three({
        "a": {"image": {**IMAGE, "layers": layers, "size_bytes": 20 * 10**9}, "layers": {"files": files}},
        "b": {"disks": small, "image": None, "layers": {"chains": [layers[:1]]}},
        "c": {"image": {**IMAGE, "layers": layers}},
    })  # fmt: skip
    staging = find_missing(facts, topology, spec, "image")
    if enough:
        check_disk_space(facts, staging, spec)
    else:
        with pytest.raises(StageError, match=r"b has 9\.00 GB free at /d, and image .* need 10\.0 GB"):
            check_disk_space(facts, staging, spec)


@pytest.mark.parametrize(
    ("reference", "tag", "registry"),
    [
        ("vllm/vllm-openai:v0.18.0", "vllm/vllm-openai:v0.18.0", ""),
        ("reg:5000/a:v1@sha256:ab", "reg:5000/a:sha256-ab", "reg:5000"),
        ("localhost/a", "localhost/a", "localhost"),
    ],
)
def test_names_of_images(reference, tag, registry):
    assert (staged_as(reference), registry_of(reference)) == (tag, registry)


PIN, OTHER = "vllm/vllm-openai@sha256:" + "a" * 64, "registry.internal/private/x@sha256:" + "e" * 64


@pytest.mark.parametrize(
    ("image", "digest", "pulled"),
    [
        ("docker.io/vllm/vllm-openai:v1", PIN, PIN),
        ("vllm/vllm-openai:v1", OTHER, None),
        (PIN, PIN.replace("a" * 64, "b" * 64), None),
    ],
)
def test_a_node_does_not_decide_from_which_repository_another_one_pulls(image, digest, pulled):
    assert digest_to_pull(image, digest) == pulled
