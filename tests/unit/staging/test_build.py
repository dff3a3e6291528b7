"""An image built by one node: once, from playbook files, and copied to the others like any image."""

from __future__ import annotations

import json

import pytest

from sparkcluster.cli.output import show_error
from sparkcluster.errors import BuildFailed, StageError
from sparkcluster.facts.collect import Collected
from sparkcluster.spec.playbook_files import read
from sparkcluster.staging import transfers
from tests.unit.conftest import describe
from tests.unit.staging.archives import tar
from tests.unit.staging.conftest import RecordingReport
from tests.unit.staging.world import IMAGE

DOCKERFILE = "ARG BASE\nFROM $BASE\nRUN pip install patch\n"


@pytest.fixture
def build(world, monkeypatch, tmp_path):
    """``build(**keys)``: stages the image of a playbook with these keys of ``build``."""
    (tmp_path / "mod").mkdir()
    (tmp_path / "mod" / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "mod" / "patch.py").write_text("x = 1\n")
    (tmp_path / "mod" / ".env").write_text("TOKEN=x\n")
    for host in world.nodes.values():
        (host.docker / "prepared").write_bytes(tar(IMAGE.oci()))

    def collected(_, spec, names):
        for name in names:
            if spec.image in world.nodes[name].images():
                world.has_image(name)
        return Collected({name: world.facts()[name] for name in names}, {})

    monkeypatch.setattr(transfers, "collect_facts", collected)

    def run(**keys):
        world.playbook = {"build": {"context": "./mod", **keys}}
        world.build = read("./mod", tmp_path / "playbook.yaml")
        run.shown = RecordingReport()
        return world.stage(what=["image"], report=run.shown)

    return run


def builds(world):
    return {
        name: calls
        for name, host in world.nodes.items()
        if (calls := [each for each in host.docker_calls() if each[0] == "build"])
    }


def test_one_node_builds_the_image_and_all_get_it(build, world) -> None:
    done = build()
    (call,) = builds(world)["a"]
    assert builds(world).keys() == {"a"}
    name = call[call.index("--tag") + 1]
    assert name.startswith("sparkcluster-build:")
    assert call[call.index("--build-arg") + 1] == "BASE=vllm/vllm-openai:v0.18.0"
    assert {host.images()[name] for host in world.nodes.values()} == {IMAGE.id}
    seen = json.loads((world.nodes["a"].docker / "seen").read_text())
    assert seen["dockerfile"] == DOCKERFILE
    assert seen["files"] == ["Dockerfile", "patch.py"]  # hidden files are not copied
    assert seen["environ"]["BUILDX_BUILDER"] == "default"
    copied = [(each.what, each.node, each.source) for each in done.copied]
    assert copied[:2] == [("files", "a", "controller"), ("image", "a", "build")]
    assert done.stagings[0].as_json()["from"] == "build"
    assert any(line.startswith(f"building {name} on a") for line in build.shown.notes)
    assert any("building, 0 minutes: " in text for _, text in world.reports)
    build()
    assert len(builds(world)["a"]) == 1


def test_a_failing_build_shows_its_last_lines_and_leaves_nothing(build, world, capsys) -> None:
    (world.nodes["a"].docker / "failing").touch()
    with pytest.raises(BuildFailed, match=r"building \./mod on a failed: docker build: exit code 1") as caught:
        build()
    error = caught.value
    assert (error.exit_code, error.node, error.step) == (1, "a", "copy image")
    assert len(error.log) == 20
    assert error.log[-1].startswith("ERROR: failed to solve")
    assert error.as_json()["error"]["log"] == list(error.log)
    assert builds(world).keys() == {"a"}
    assert [host.image_ids() for host in world.nodes.values()] == [set(), set(), set()]
    show_error(error)
    told = capsys.readouterr().err
    assert "  | #39 step" in told
    assert "fix ./mod/Dockerfile" in told


def test_a_build_has_a_time_limit(build, world) -> None:
    (world.nodes["a"].docker / "endless").touch()
    with pytest.raises(BuildFailed, match=r"it took longer than 1 s \(timeout_s\)"):
        build(timeout_s=1.0)


def test_a_built_image_is_never_pulled(build, world, tmp_path) -> None:
    """A registry may have the same name: a node with a broken copy is an error, as for an image without a registry."""
    build()
    name = next(iter(world.nodes["a"].images()))
    world.changes["b"]["image"] = world.changes["c"]["image"] = None
    for host in (world.nodes["b"], world.nodes["c"]):
        (host.docker / "refs" / name).unlink()
        (host.docker / "images" / IMAGE.id).unlink()
    world.changes["a"]["docker"] = {**describe()["docker"], "containerd_store": True}
    broken = [
        entry for entry in IMAGE.oci() if entry[0] in ("index.json", "manifest.json") or b"schemaVersion" in entry[1]
    ]
    (world.nodes["a"].docker / "sent").write_bytes(tar(broken))
    with pytest.raises(StageError, match="the archive of the image lacks"):
        build()
    assert not [pull for host in world.nodes.values() for pull in host.engine.pulls]
