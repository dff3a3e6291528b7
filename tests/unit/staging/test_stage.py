"""Staging for a complete cluster: at most one download, then from node to node."""

from __future__ import annotations

import dataclasses
import json
import struct

import pytest

from sparkcluster.cli.output import show_error
from sparkcluster.errors import RegistryAuth, StageError, UsageError
from sparkcluster.facts.collect import Collected
from sparkcluster.facts.docker import Image
from sparkcluster.hosts import program
from sparkcluster.report import Report
from sparkcluster.staging import transfers
from sparkcluster.staging.copy_request import Settings
from tests.unit.conftest import describe
from tests.unit.docker_engine import DONE
from tests.unit.staging.archives import ImageMade, tar
from tests.unit.staging.world import IMAGE, REFERENCE


def test_all_nodes_end_with_the_files_of_one(world, model):
    write, tree, revision = model
    sizes = write(world.nodes["b"].hf_home)
    world.has_weights("b", sizes, revision)
    image_id = world.nodes["a"].add_image(IMAGE, REFERENCE)
    world.has_image("a")
    report = world.stage()
    assert report.copied
    assert sorted((each.what, each.node) for each in report.copied) == [
        ("image", "b"), ("image", "c"), ("weights", "a"), ("weights", "c"),
    ]  # fmt: skip
    assert len({json.dumps(sorted(map(str, tree(host.hf_home).items()))) for host in world.nodes.values()}) == 1
    assert {host.images()[REFERENCE] for host in world.nodes.values()} == {image_id}
    assert ("c", "weights missing") in world.reports
    assert json.dumps(report.as_json())


def test_every_sender_must_match_the_first_nodes_description_of_the_image(world):
    """The first has it without its layers; the second claims to have the same."""
    evil = dataclasses.replace(IMAGE, config={**IMAGE.config, "Entrypoint": ["/bin/sh"]})
    for name in "ab":
        world.has_image(name)
        world.nodes[name].add_image(IMAGE, REFERENCE)
    (world.nodes["b"].docker / "sent").write_bytes(tar(evil.oci()))
    (world.nodes["a"].docker / "sent").write_bytes(BROKEN)
    with pytest.raises(StageError, match="copy image on a: the archive of the image lacks files") as caught:
        world.stage(what=["image"])
    assert "copy image on b: the archive contains another image" in caught.value.others[0].message
    assert world.nodes["c"].images() == {}


def test_each_failing_node_is_reported(world, model, capsys):
    """Both nodes and both causes, with a hint each, for people and for programs."""
    write, _, revision = model
    world.has_weights("a", write(world.nodes["a"].hf_home), revision)
    for name in "bc":
        blocked = world.nodes[name].hf_home
        blocked.parent.mkdir()
        blocked.write_text("a file where a directory should be")
    with pytest.raises(StageError) as caught:
        world.stage(what=["weights"])
    error = caught.value
    assert [each.node for each in (error, *error.others)] == ["b", "c"]
    assert [each["node"] for each in error.as_json()["error"]["others"]] == ["c"]
    show_error(error)
    lines = capsys.readouterr().err.splitlines()
    assert [line[:26] for line in lines if line.startswith("error:")] == [
        "error: copy weights on b: ", "error: copy weights on c: ",
    ]  # fmt: skip


def test_a_registry_that_requires_a_login_is_an_error_with_the_command_to_type(world):
    world.nodes["a"].engine.refusal = 404, "pull access denied for x, repository does not exist or may require login"
    with pytest.raises(RegistryAuth, match="requires a login on a: pull access denied") as caught:
        world.stage(what=["image"])
    assert caught.value.hint == "docker login   on a"


TOP = ImageMade([IMAGE.layers[0], b"new top" * 1000])


def updated(world):
    """Node a has an image of two layers, of which b and c have the lower one."""
    world.nodes["a"].add_image(TOP, REFERENCE)
    world.has_image("a", TOP)
    for name in "bc":
        world.nodes[name].add_image(IMAGE, "vllm/vllm-openai:v0.17.0")
        world.changes[name]["layers"] = {"chains": [IMAGE.diffs]}


def test_a_node_gets_only_missing_layers_and_that_is_reported_first(world):
    updated(world)
    report = world.stage(what=["image"])
    assert {each.node: each.bytes < 30_000 for each in report.copied} == {"b": True, "c": True}
    assert ("b", "gets 0.0 of 2.5 MB of the image: it has 1 of 2 layers") in world.reports
    assert world.nodes["a"].docker_calls().count(["save", TOP.id]) == 1
    assert {host.images()[REFERENCE] for host in world.nodes.values()} == {TOP.id}
    assert not [*world.nodes["a"].home.parent.glob("state/*/clusters/atlas/images")]


def test_if_no_layer_can_be_skipped_a_copy_of_the_complete_image_is_reported(world):
    """Receivers have one of its layers, but store it compressed, unlike the source."""
    updated(world)
    blobs = [{"layer": IMAGE.diffs[0], "digest": "1" * 64, "bytes": 5}]
    for name in "bc":
        world.changes[name].update(docker=CONTAINERD, layers={"blobs": blobs})
    world.stage(what=["image"])
    assert ("b", "the complete image, 2.5 MB: no layers found on b and c") in world.reports


def test_files_whose_name_is_not_their_hash_reach_no_other_node(world, set_source):
    updated(world)
    real = program.source
    set_source(lambda module, engine: real(module, engine).replace('"sha256": name', '"sha256": name[::-1]'))
    with pytest.raises(StageError, match="copy image on a: the image's files are not named by their SHA-256") as caught:
        world.stage(what=["image"])
    assert caught.value.hint == "docker image rm --force IMAGE   on a, then retry"
    assert not [*world.nodes["b"].home.parent.glob("state/b/clusters/atlas/images")]


def test_an_image_whose_files_arrived_but_were_not_all_loaded_is_resumed(world):
    """A full disk of Docker names its node; the others have the image, and the next run does not save it again."""
    updated(world)
    (world.nodes["c"].docker / "full").touch()
    with pytest.raises(StageError, match=r"copy image on c: the disk is full: docker load: .*no space left") as caught:
        world.stage(what=["image"])
    assert (caught.value.node, world.nodes["b"].images()[REFERENCE]) == ("c", TOP.id)
    (world.nodes["c"].docker / "full").unlink()
    world.has_image("b", TOP)
    world.stage(what=["image"])
    assert world.nodes["c"].images()[REFERENCE] == TOP.id
    assert world.nodes["a"].docker_calls().count(["save", TOP.id]) == 1


class AnsweringReport(Report):
    """Answers every question, and records questions and notes."""

    def __init__(self, answer=False):
        self.answer, self.questions, self.notes = answer, [], []

    def confirm(self, question):
        self.questions.append(question)
        return self.answer

    def note(self, text):
        self.notes.append(text)


def build_of(made):
    return Image.model_validate({"reference": REFERENCE, **made.facts()}).build


def separate_builds(world, image_build=""):
    """The image was built separately on a and on b."""
    for name, image in (("a", TOP), ("b", IMAGE)):
        world.nodes[name].add_image(image, REFERENCE)
        world.has_image(name, image)
    world.image_build = image_build
    return f"a has {TOP.id[:19]}, b has {IMAGE.id[:19]}"


@pytest.mark.parametrize(("image_build", "why"), [("", "differs between nodes"), (
    build_of(IMAGE), "is a different image than the one staged before")])  # fmt: skip
def test_the_operator_is_asked_before_nodes_get_another_image(world, image_build, why):
    ids, report = separate_builds(world, image_build), AnsweringReport()
    with pytest.raises(UsageError, match=why) as caught:
        world.stage(what=["image"], report=report)
    assert report.questions == [f"{REFERENCE} {why}: {ids}\ncopy the image of a to b, c?"]
    assert caught.value.hint == "to copy the image of a, add --yes, or answer y in a terminal"
    assert (world.nodes["b"].images(), world.nodes["c"].images()) == ({REFERENCE: IMAGE.id}, {})
    report = AnsweringReport()
    world.stage(what=["image"], report=report, settings=Settings(yes=True))
    assert (report.questions, report.notes) == ([], [f"{REFERENCE} {why}: {ids}; copying the image of a"])
    assert {host.images()[REFERENCE] for host in world.nodes.values()} == {TOP.id}


def test_a_previously_staged_image_goes_to_all_nodes_without_a_question(world):
    separate_builds(world, build_of(TOP))
    world.stage(what=["image"], report=AnsweringReport())
    assert {host.images()[REFERENCE] for host in world.nodes.values()} == {TOP.id}


@pytest.mark.parametrize("digest", [None, "vllm/vllm-openai@sha256:" + "d" * 64])
def test_an_image_that_only_a_worker_has_needs_consent_whatever_digest_it_reports(world, digest):
    world.nodes["b"].add_image(TOP, REFERENCE)
    world.has_image("b", TOP, digest=digest)
    with pytest.raises(UsageError, match="is not on a, the head: b has sha256:"):
        world.stage(what=["image"], report=AnsweringReport())
    assert world.nodes["a"].images() == {}


@pytest.mark.parametrize("gone", ["image", "layer"])
def test_an_image_that_fails_to_load_without_its_layers_is_copied_completely(world, gone):
    """It was removed since then, or Docker detects only then that it is incomplete."""
    updated(world)
    b = world.nodes["b"]
    if gone == "image":
        (b.docker / "images" / IMAGE.id).unlink()
    else:
        (b.docker / "forgetful").touch()
    report = world.stage(what=["image"])
    assert {each.node: each.bytes for each in report.copied}["b"] > 2_500_000
    said = [text for node, text in world.reports if node == "b" and "copying the complete image" in text]
    assert len(said) == 1
    assert "no such file or directory" in said[0]
    assert b.images()[REFERENCE] == TOP.id


BROKEN = tar(
    [entry for entry in IMAGE.oci() if entry[0] in ("index.json", "manifest.json") or b"schemaVersion" in entry[1]]
)
CONTAINERD = {**describe()["docker"], "containerd_store": True}
DIGEST = "vllm/vllm-openai@sha256:" + "d" * 64


@pytest.fixture
def broken(world, monkeypatch):
    """Node a has the image in containerd's store without its layers, and c lacks it; and later probe answers."""
    world.has_image("a")
    world.nodes["a"].add_image(IMAGE, REFERENCE)
    (world.nodes["a"].docker / "sent").write_bytes(BROKEN)
    world.changes["a"]["docker"] = CONTAINERD
    world.changes["a"]["image"]["digest"] = DIGEST

    def collected(fleet, spec, names):
        (name,) = names
        return Collected({name: world.facts()[name]}, {})

    monkeypatch.setattr(transfers, "collect_facts", collected)
    return world


def test_an_image_without_its_layers_on_one_node_is_copied_from_another(broken):
    broken.has_image("b")
    broken.nodes["b"].add_image(IMAGE, REFERENCE)
    report = broken.stage(what=["image"])
    assert [(each.node, each.source) for each in report.copied] == [("c", "b")]
    assert broken.nodes["c"].images() == {REFERENCE: IMAGE.id}


def test_an_image_that_no_node_has_with_its_layers_is_pulled_by_digest(broken, monkeypatch):
    """The same build as on the first node, under the playbook's name; then it is a source for the others."""
    one_by_one = lambda _run, action, nodes: {node: action(node) for node in nodes}  # noqa: E731 - one state_dir is all theirs
    monkeypatch.setattr(transfers.Transfers, "at_once", one_by_one)
    for name in "bc":
        host = broken.nodes[name]
        arrived = {**broken.changes["a"], "docker": CONTAINERD}
        host.engine.scripts = [[
            lambda host=host: host.add_image(IMAGE, DIGEST),
            lambda name=name, arrived=arrived: broken.changes.update({name: arrived}),
            *DONE,
        ]]  # fmt: skip
    report = broken.stage(what=["image"])
    pulls = [pull for host in broken.nodes.values() for pull in host.engine.pulls]
    assert {(query["fromImage"], query["tag"]) for query, _ in pulls} == {tuple(DIGEST.split("@"))}
    assert {each.node for each in report.copied} == {"b", "c"}
    assert report.copied[0].source == "download"
    assert all(broken.nodes[name].images()[REFERENCE] == IMAGE.id for name in "bc")


def test_without_hub_or_downloader_the_node_and_the_command_are_shown(world):
    with pytest.raises(StageError, match="the weights of Qwen/Qwen3-8B are not on any node") as caught:
        world.stage(what=["weights"])
    assert "hf download Qwen/Qwen3-8B --revision main" in caught.value.hint
    assert f"HF_HOME={world.nodes['a'].hf_home}" in caught.value.hint


QWEN = "Qwen/Qwen3-8B"


def _snapshot(host):
    folder = host.hf_home / "hub/models--Qwen--Qwen3-8B/snapshots"
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_only_served_files_are_downloaded(world, hub):
    """And a name on the hub is not parsed as an option of the downloader."""
    hub.files = {"--local-dir=x": 2, "config.json": 2, "tokenizer.json": 2, "model.safetensors": 5_000_000,
                 "metal/model.bin": 20_000_000}  # fmt: skip
    world.stage(what=["weights"])
    for host in world.nodes.values():
        assert _snapshot(host) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert ("a", f"{QWEN}: 20 MB of unneeded files not downloaded") in world.reports


def test_a_download_without_free_space_fails_before_it_begins(world, hub):
    hub.files = {"config.json": 2, "tokenizer.json": 2, "model.safetensors": 10**17}
    with pytest.raises(StageError, match=r"the disk is full: .* GB free, 100000000.0 GB needed"):
        world.stage(what=["weights"])
    assert hub.requests == []


def test_a_copy_omits_unserved_files(world, model):
    """A node that downloaded everything, as earlier versions did, passes on served files; its other files stay."""
    write, tree, revision = model
    sizes = write(world.nodes["a"].hf_home)
    folder = world.nodes["a"].hf_home / f"hub/models--Qwen--Qwen3-8B/snapshots/{revision}"
    (folder / "original").mkdir()
    (folder / "original/consolidated.00.pth").write_bytes(b"x" * 5_000_000)
    (folder / "pytorch_model.bin").write_bytes(b"x" * 5_000_000)
    world.has_weights("a", sizes, revision)
    report = world.stage(what=["weights"])
    assert {each.node: each.bytes for each in report.copied} == {"b": 3_000_005, "c": 3_000_005}
    assert not [name for name in tree(world.nodes["b"].hf_home) if "original" in name or "pytorch" in name]
    assert (folder / "original/consolidated.00.pth").exists()


def test_a_gated_model_is_downloaded_with_the_token_on_one_node(world, hub, monkeypatch):
    """The node tries without it first; then this machine asks the hub, and the node gets the token."""
    monkeypatch.setenv("HF_TOKEN", hub.token)
    hub.gated.add(QWEN)
    world.stage(what=["weights"])
    assert hub.requests == [(QWEN, None), (QWEN, None), (QWEN, hub.token), (QWEN, hub.token)]
    assert ("a", "Qwen/Qwen3-8B is gated: downloading it with HF_TOKEN") in world.reports
    assert [name for name, host in world.nodes.items() if (host.home / "stolen").exists()] == ["a"]


def test_a_node_that_falsely_reports_a_gated_model_does_not_get_the_token(world, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", hub.token)
    for host in world.nodes.values():
        (host.home / "liar").touch()
    with pytest.raises(StageError, match=r"the hub denies a access to Qwen/Qwen3-8B: GatedRepoError") as caught:
        world.stage(what=["weights"])
    assert "hf auth login   on a" in caught.value.hint
    assert {token for _, token in hub.requests} == {None}
    assert not [name for name, host in world.nodes.items() if (host.home / "stolen").exists()]


@pytest.mark.parametrize(
    ("gated", "said"), [(False, "hub says no"), (True, "the playbook's image must not get the token")]
)
def test_a_downloader_in_the_image_sees_one_repository_and_no_token(world, hub, monkeypatch, tmp_path, gated, said):
    """The image is the recipe's."""
    (tmp_path / "tools" / "hf").unlink()
    monkeypatch.setenv("HF_TOKEN", hub.token)
    hub.gated |= {QWEN} if gated else set()
    world.has_image("a")
    with pytest.raises(StageError, match=said):
        world.stage(what=["weights"])
    call, *_ = world.nodes["a"].docker_calls()
    assert call[:2] == ["run", "--rm"]
    assert call[call.index("--security-opt") + 1] == "no-new-privileges", "it runs as the node's user"
    cache = f"{world.nodes['a'].hf_home}/hub"
    folders = [f"{cache}/models--Qwen--Qwen3-8B", f"{cache}/.locks/models--Qwen--Qwen3-8B"]
    assert [call[at + 1] for at, word in enumerate(call) if word == "-v"] == [f"{path}:{path}" for path in folders]
    environ = json.loads((world.nodes["a"].docker / "environ").read_text())
    assert "HF_TOKEN" not in {*call, *environ}
    assert (environ["HF_HUB_CACHE"], call[-2:]) == (cache, [QWEN, "main"])


def test_repositories_in_arguments_are_staged_with_the_model(world, hub, model):
    """A drafter on one node is copied, an adapter on none is downloaded once; then nothing is missing."""
    write, tree, revision = model
    for host in world.nodes.values():
        world.has_weights(host.name, write(host.hf_home), revision)
    write(world.nodes["b"].hf_home, "z-lab/Drafter", weights=struct.pack("<Q", 2) + b"{}")
    world.playbook = {
        "args": {
            "speculative-config": {"method": "dflash", "model": "z-lab/Drafter"},
            "lora-modules": ["sql=org/adapter", "local=/adapters/x"],
        }
    }
    report = world.stage(what=["weights"])
    assert [staging.name for staging in report.stagings] == [QWEN, "z-lab/Drafter", "org/adapter"]
    assert {(each.node, each.source) for each in report.copied[:2]} <= {("a", "b"), ("c", "b"), ("a", "c"), ("c", "a")}
    assert (report.copied[2].node, report.copied[2].source) == ("a", "download")
    assert hub.requests == [("org/adapter", None)]
    assert len({json.dumps(sorted(map(str, tree(host.hf_home).items()))) for host in world.nodes.values()}) == 1
    again = world.stage(what=["weights"])
    assert not again.copied
    assert len(world.stage(what=["image"], dry_run=True).stagings) == 1


def test_weights_are_downloaded_with_the_previously_copied_image(world, hub, tmp_path):
    """If a node has no downloader."""
    (tmp_path / "tools" / "hf").unlink()
    world.has_image("b")
    image_id = world.nodes["b"].add_image(IMAGE, REFERENCE)
    with pytest.raises(StageError, match="hub says no"):
        world.stage(settings=Settings(yes=True))
    (call,) = [call for call in world.nodes["a"].docker_calls() if call[0] == "run"]
    assert image_id in call


def test_an_image_without_a_downloader_is_an_error_with_the_package_to_install(world, hub, tmp_path):
    """Such as llama.cpp's official image, which has no Python packages."""
    (tmp_path / "tools" / "hf").unlink()
    for name, node in world.nodes.items():
        world.has_image(name)
        (node.docker / "says").write_text("ModuleNotFoundError: No module named 'huggingface_hub'")
    with pytest.raises(StageError, match=r"neither hf \(uv tool install huggingface_hub\) nor") as caught:
        world.stage(what=["weights"])
    assert f"hf download {QWEN}" in caught.value.hint
