"""The commit that a branch or tag named first, and its change by the owner of the repository."""

from __future__ import annotations

import pytest

from sparkcluster.errors import StageError
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.output_file import state_home
from sparkcluster.release.stage import Options, stage
from sparkcluster.report import Report
from tests.unit.conftest import accepted

OLD, NEW = "a" * 40, "b" * 40
IMAGE = {"reference": "vllm/vllm-openai:v0.18.0", "architecture": "arm64", "inside": {
    "python": "/usr/bin/python3", "python_version": "3.12.3", "platform": "linux_aarch64", "version": "0.18.0",
    "ray_version": "2.53.0"}}  # fmt: skip


class Notes(Report):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def staged(spark, cluster):
    """Stages on a node that has everything: ``staged(commit, image ID, **model)``; returns the notes."""

    def run(commit, image_id="sha256:1", *, remote_code=False, dry_run=False, args=None, adapter=None, **model):
        weights = {"path": "/w", "revision": commit, "files": [{"name": "config.json", "size_bytes": 1}]}
        companions = {"org/adapter": {**weights, "revision": adapter}} if adapter else {}
        image = {**IMAGE, "id": image_id}
        facts = spark({"enp1s0f0np0": "10.1.0.11/24"}, weights=weights, companions=companions, image=image)
        host = FakeHost("alpha").program("probe", facts.model_dump(mode="json"))
        playbook = {"model": {"id": "org/model", **model}, "image": IMAGE["reference"],
                    "args": {"trust-remote-code": remote_code, **(args or {})}}  # fmt: skip
        spec = cluster({"alpha": "192.168.86.11"}, playbook=playbook)
        fleet, notes = Fleet({"alpha": host}), Notes()
        stage(fleet, spec if dry_run else accepted(spec), Options(dry_run=dry_run), notes)
        return notes.notes

    return run


def test_another_image_or_commit_under_the_same_name_is_reported_until_it_is_accepted(staged):
    assert [staged(OLD), staged(OLD)] == [[], []]
    path = next((state_home() / "staged").iterdir())
    accept = f"; to accept the change: rm {path}"
    image = f"warning: {IMAGE['reference']} is a different image than the one staged before: sha256:2"
    model = f"warning: main of org/model changed since it was first staged: was {OLD}, now {NEW}{accept}"
    assert [staged(OLD, "sha256:2"), staged(NEW, "sha256:2"), staged(NEW, "sha256:2")] == [
        [image], [model], [model]
    ]  # fmt: skip
    assert staged(NEW, "sha256:2", revision=NEW) == []
    path.unlink()
    assert [staged(NEW, "sha256:2"), staged(NEW, "sha256:2")] == [[], []]
    assert staged(OLD, "sha256:2")[0].startswith(
        f"warning: main of org/model changed since it was first staged: was {NEW}"
    )


def test_changed_code_of_a_branch_does_not_run_without_consent(staged):
    assert staged(OLD, remote_code=True) == []
    for _ in range(2):
        with pytest.raises(
            StageError, match=f"main of org/model changed .*: was {OLD}, now {NEW}; the new code would run"
        ) as caught:
            staged(NEW, remote_code=True)
    path = next((state_home() / "staged").iterdir())
    assert caught.value.hint.startswith("write revision: COMMIT under model")
    assert caught.value.hint.endswith(f"; or accept the change: rm {path}")
    assert staged(NEW, remote_code=True, revision=NEW) == []
    path.unlink()
    assert staged(NEW, remote_code=True) == []


def test_another_commit_of_a_repository_loaded_with_the_model_is_reported(staged):
    args = {"lora-modules": ["sql=org/adapter"]}
    assert staged(OLD, args=args, adapter=OLD) == []
    (warning,) = staged(OLD, args=args, adapter=NEW)
    said = f"warning: main of org/adapter changed since it was first staged: was {OLD}, now {NEW}; to accept"
    assert warning.startswith(said)


def test_a_dry_run_records_nothing(staged):
    assert staged(OLD, dry_run=True) == []
    assert not (state_home() / "staged").exists()
