"""``models`` and ``models --prune``: real programs on real files, under a real lease."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from sparkcluster.cli import models as command
from sparkcluster.errors import CommandFailed, LeaseHeld, UsageError
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.models import Found, Model, models
from sparkcluster.node.file_hashes import Record
from sparkcluster.release.prune import prunable, prune
from sparkcluster.report import Report
from sparkcluster.runtime.lease import Lease
from sparkcluster.spec.playbook_files import FileSet
from tests.unit.staging.conftest import tree, write_model
from tests.unit.staging.world import REVISION

STATE = "~/.local/state/sparkcluster"
OLD, OWN = "Qwen/Old", "Qwen/Own"


class AnsweringReport(Report):
    """Answers every question with ``yes``, and records it."""

    def __init__(self, *, yes=True):
        self.yes, self.questions = yes, []

    def confirm(self, question):
        self.questions.append(question)
        return self.yes


class Place:
    """Nodes a and b of cluster ``atlas``, which serves Qwen/Qwen3-8B."""

    def __init__(self, nodes, cluster):
        self.nodes = {host.name: host for host in nodes}
        self.fleet = Fleet(self.nodes)
        hosts = dict(zip(self.nodes, self.nodes, strict=True))
        self.spec = cluster(hosts, state_dir=STATE)

    def root(self, name, model):
        return self.nodes[name].hf_home / "hub" / ("models--" + model.replace("/", "--"))

    def state(self, name):
        return self.nodes[name].home / ".local/state/sparkcluster"

    def staged(self, model, cluster="atlas", revision=REVISION):
        """Node b has it as staging leaves it, which test_local_weights.py tests."""
        root = self.root("b", model)
        if not root.exists():
            write_model(self.nodes["b"].hf_home, model)
        record = Record(str(self.state("b")), str(root))
        for blob in (root / "blobs").iterdir():
            record.add(f"blobs/{blob.name}", blob.stat(), blob.name, ours=True)
        record.save(cluster, revision)

    def directory(self, path):
        """A directory on b written by staging."""
        root = self.nodes["b"].home / path
        root.mkdir(parents=True)
        (root / "config.json").write_text("{}")
        record = Record(str(self.state("b")), str(root))
        record.add("config.json", (root / "config.json").stat(), "0" * 64, ours=True)
        record.save("atlas")
        return root

    def release(self, text):
        """A release of cluster ``borea`` on b."""
        path = self.state("b") / "clusters/borea/releases/000001.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def found(self):
        return models(self.fleet, self.spec)

    def prune(self, report=None, *, yes=True):
        return prune(self.fleet, self.spec, self.found, report or Report(), yes=yes)


@pytest.fixture
def place(node, cluster):
    made = Place([node(name) for name in "ab"], cluster)
    for model in (OLD, OWN):
        write_model(made.nodes["a"].hf_home, model)
    write_model(made.nodes["b"].hf_home, OWN)
    made.staged(OLD)
    return made


def rows(place):
    return command.rows(place.found())


def test_every_model_is_listed_with_its_size_and_staged_bytes(place):
    found = place.found().as_json()
    assert [each["name"] for each in found["models"]] == [OLD, OWN]
    old = found["models"][0]["nodes"]
    assert {name: (each["bytes"], each["staged_bytes"]) for name, each in old.items()} == {
        "a": (3_000_045, 0),
        "b": (3_000_045, 3_000_005),
    }
    assert old["b"]["commits"] == [REVISION]
    assert old["b"]["clusters"] == ["atlas"]
    assert rows(place) == [
        (OLD, "3.0 MB", "-", "a", "-"), (OLD, "3.0 MB", "3.0 MB", "b", "-"), (OWN, "3.0 MB", "-", "a, b", "-"),
    ]  # fmt: skip


def test_staged_files_are_removed_and_nothing_else(place):
    before = {name: tree(host.hf_home) for name, host in place.nodes.items()}
    report = AnsweringReport()
    assert place.prune(report, yes=False) == {OLD: {"b": 3_000_005}}
    (question,) = report.questions
    assert question.splitlines() == [
        f"{OLD}: 3.0 MB on b, in {place.root('b', OLD)}",
        "remove these unused models, 3.0 MB?",
    ]
    assert tree(place.nodes["a"].hf_home) == before["a"]
    assert tree(place.nodes["b"].hf_home) == {path: content for path, content in before["b"].items() if "Own" in path}
    assert not place.root("b", OLD).exists()
    assert list((place.state("b") / "models").iterdir()) == []
    assert place.prune(yes=True) == {}


@pytest.fixture
def files_of_playbooks(place):
    """On b, files of three playbooks: one is loaded, one is in a release, and one was changed since."""
    files = place.state("b") / "files"
    named = FileSet("./parser.py", "a" * 16, "parser.py", ())
    for mark in ("a" * 16, "b" * 16, "c" * 16):
        (files / mark).mkdir(parents=True)
        (files / mark / "parser.py").write_text("pass")
        (files / mark / ".whole").write_text(mark)
    releases = place.state("b") / "clusters/borea/releases"
    releases.mkdir(parents=True)
    (releases / "000001.json").write_text(json.dumps({"mounts": [f"{files}/{'b' * 16}/parser.py"]}))
    place.spec = dataclasses.replace(place.spec, files={named.source: named})
    return files


def test_playbook_files_are_removed_when_nothing_uses_them(place, files_of_playbooks):
    found = {each["name"]: each for each in place.found().as_json()["models"]}
    assert found[f"files/{'a' * 16}/parser.py"]["playbook"] == place.spec.playbook.name
    assert found[f"files/{'b' * 16}/parser.py"]["nodes"]["b"]["used_by"] == ["borea"]
    assert place.prune() == {OLD: {"b": 3_000_005}, f"files/{'c' * 16}/parser.py": {"b": 20}}
    assert sorted(path.name for path in files_of_playbooks.iterdir()) == ["a" * 16, "b" * 16]


def test_without_confirmation_nothing_is_removed(place):
    before = tree(place.nodes["b"].hf_home)
    with pytest.raises(UsageError, match="nothing was removed"):
        place.prune(AnsweringReport(yes=False), yes=False)
    assert tree(place.nodes["b"].hf_home) == before


def test_files_that_a_user_added_or_changed_are_kept(place):
    root = place.root("b", OLD)
    changed = (root / "snapshots" / REVISION / "tokenizer.json").resolve()
    changed.write_bytes(b"[1]")
    (root / "snapshots" / REVISION / "notes.txt").write_text("the user's")
    assert place.prune() == {OLD: {"b": 3_000_002}}
    left = tree(root)
    assert set(left) == {
        f"blobs/{changed.name}", f"snapshots/{REVISION}/notes.txt", f"snapshots/{REVISION}/tokenizer.json", "refs/main",
    }  # fmt: skip


def test_a_blob_used_by_another_snapshot_is_kept(place):
    """The user downloaded another revision; the hub's client reused a blob for it."""
    root = place.root("b", OLD)
    shared = (root / "snapshots" / REVISION / "model.safetensors").readlink()
    (root / "snapshots" / "mine").mkdir()
    (root / "snapshots" / "mine" / "model.safetensors").symlink_to(shared)
    assert place.prune() == {OLD: {"b": 5}}
    assert (root / "snapshots" / "mine" / "model.safetensors").read_bytes() == b"w" * 3_000_000


def test_files_that_staging_added_to_a_users_snapshot_are_kept(place):
    """Files of it were missing: the snapshot belongs to the user."""
    place.staged(OWN, revision=None)
    before = tree(place.root("b", OWN))
    place.prune()
    assert tree(place.root("b", OWN)) == before


def test_files_used_by_a_release_of_any_cluster_are_kept(place):
    """On any node: the record may be missing on this one."""
    path = place.state("a") / "clusters/borea/releases/000001.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"engine": ["vllm", "serve", "x", "--speculative-config", f'{{"model": "{OLD}"}}']}))
    assert place.prune() == {}
    assert prunable(place.found(), ["atlas"])[1] == {OLD: "cluster borea"}
    path.write_text(json.dumps({"plan": {"model": OLD + "-FP8"}}))
    assert place.prune() == {OLD: {"b": 3_000_005}}


def test_files_used_by_a_playbook_are_kept(place):
    model = place.spec.playbook.model.model_copy(update={"id": OLD})
    playbook = place.spec.playbook.model_copy(update={"name": "old", "model": model})
    found = models(place.fleet, place.spec, [dataclasses.replace(place.spec, playbook=playbook)])
    assert prune(place.fleet, place.spec, lambda: found, Report(), yes=True) == {}
    assert prunable(found, ["atlas"])[1] == {OLD: "playbook old"}


def test_files_used_by_a_release_through_a_link_are_kept(place):
    root = place.directory("nvme/models/m")
    linked = place.nodes["b"].home / "models/m"
    linked.parent.symlink_to(root.parent)
    place.release(json.dumps({"plan": {"argv": ["-v", f"{linked}:/models/m:ro"]}}))
    assert place.prune() == {OLD: {"b": 3_000_005}}
    assert (linked / "config.json").exists()
    place.release(json.dumps({"plan": {"argv": ["-v", str(linked.parent)]}}))
    assert list(place.prune().values()) == [{"b": 2}]


def test_files_used_by_a_release_are_kept_whatever_their_name(place):
    roots = [place.directory(f"{name}/m") for name in ("Modèles", 'a "b"', "it's", "two words", "a,b=c", "back\\slash")]
    argv = []
    for at, root in enumerate(roots):
        argv += [
            ["-v", f"{root}:/models/m:ro"],
            [f"--mount=type=bind,source={root},target=/models/m"],
            ["--speculative-config", json.dumps({"model": str(root), "method": "mtp"})],
            [f"cp -r '{root}' /tmp"],
        ][at % 4]
    place.release(json.dumps({"plan": {"argv": argv}}))
    assert place.prune() == {OLD: {"b": 3_000_005}}
    assert all((root / "config.json").exists() for root in roots)


@pytest.mark.parametrize("text", ["", '{"plan": {"model": "Qw', "\xff"])
def test_nothing_is_removed_if_a_record_is_unreadable(place, text):
    place.directory("m")
    place.release(text)
    assert place.prune() == {}


def test_files_also_staged_by_another_cluster_are_kept(place):
    place.staged(OLD, "borea")
    assert place.prune() == {}
    assert prunable(place.found(), ["atlas"])[1] == {OLD: "cluster borea"}


def test_nothing_is_removed_while_another_operator_starts_the_cluster(place):
    """Until its ranks start, nothing refers to the files that up staged, and the staging lease is already released."""
    before = {name: tree(host.hf_home) for name, host in place.nodes.items()}
    with Lease(place.fleet, SimpleNamespace(cluster="atlas", state_dir=STATE), "up").acquire(["a", "b"]):
        with pytest.raises(LeaseHeld, match="up"):
            place.prune()
        assert {name: tree(host.hf_home) for name, host in place.nodes.items()} == before


def test_nothing_is_removed_while_a_node_does_not_answer(place):
    found = place.found()
    silent = Found({"b": found.nodes["b"]}, {"a": "a: no route to host"}, found.named)
    with pytest.raises(CommandFailed, match="nothing was removed: the models that a uses are unknown"):
        prune(place.fleet, place.spec, lambda: silent, Report(), yes=True)


def test_a_link_that_leads_outside_is_not_followed(place):
    """A container that downloads models can replace a folder by one."""
    root, outside = place.root("b", OLD), place.nodes["b"].home / "outside"
    (root / "blobs").rename(outside)
    (root / "blobs").symlink_to(outside)
    before = tree(outside)
    place.prune()
    assert tree(outside) == before


def test_a_record_of_another_directory_removes_nothing(place):
    """A record states its directory."""
    (record,) = (place.state("b") / "models").glob("*.jsonl")
    own = place.root("b", OWN)
    text = record.read_text().replace(str(place.root("b", OLD)), str(own))
    record.write_text(text)
    before = tree(own)
    place.prune()
    assert tree(own) == before
    assert Record(str(place.state("b")), str(own)).files == {}


def test_text_from_a_node_is_one_line_of_the_question(place):
    """Otherwise it could ask another question there."""
    found = place.found()
    said = {
        "repository": "Qwen/Old\x1b[2J\n\nremove nothing?\u202e",
        "path": "/models/old",
        "bytes": 5,
        "staged_bytes": 5,
    }
    report = AnsweringReport()
    told = Found({"b": (Model(**said),)}, {}, found.named)
    prune(place.fleet, place.spec, lambda: told, report, yes=False)
    assert [line.isprintable() for line in report.questions[0].split("\n")] == [True, True]
    for path in ("/models\n/old", "/models/\x1b[2J", "relative"):
        with pytest.raises(ValidationError):
            Model(**{**said, "path": path})
