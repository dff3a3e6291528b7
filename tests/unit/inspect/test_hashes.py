"""Real node programs hash real files."""

from __future__ import annotations

import hashlib

import pytest

from sparkcluster.facts.weights import Weights
from sparkcluster.inspect.hashes import hashes
from sparkcluster.report import Report


@pytest.fixture
def two(loopback):
    return loopback("alpha", "beta")


def snapshot(top):
    """A model in Hugging Face's cache format: a large file as a link to a blob named by its hash, a small one likewise."""
    content = b"weights" * 1000
    name = hashlib.sha256(content).hexdigest()
    blobs, folder = top / "blobs", top / "snapshots" / "rev"
    for made in (blobs, folder / "deep"):
        made.mkdir(parents=True)
    (blobs / name).write_bytes(content)
    (blobs / "0a1b2c").write_bytes(b"{}")
    (folder / "deep" / "model.safetensors").symlink_to(blobs / name)
    (folder / "config.json").symlink_to(blobs / "0a1b2c")
    (folder / "half.partial").write_bytes(b"x")
    return folder, name


def test_every_file_is_hashed_and_reported_with_the_blob_of_its_link(two, tmp_path):
    folder, name = snapshot(tmp_path / "model")
    for node in two.facts:
        two.change(node, weights=Weights(path=str(folder)))
    found = hashes(two.fleet, two.facts, Report())
    assert found.unasked == {}
    assert found.files["alpha"] == found.files["beta"]
    hashed = {file.name: (file.size_bytes, file.sha256, file.blob) for file in found.files["alpha"]}
    assert hashed == {
        "deep/model.safetensors": (7000, name, name),
        "config.json": (2, hashlib.sha256(b"{}").hexdigest(), None),
    }


def test_a_missing_directory_is_reported_for_its_node(two, tmp_path):
    folder, _ = snapshot(tmp_path / "model")
    two.change("alpha", weights=Weights(path=str(folder)))
    two.change("beta", weights=Weights(path=str(tmp_path / "nowhere")))
    found = hashes(two.fleet, two.facts, Report())
    assert list(found.files) == ["alpha"]
    assert "does not exist" in found.unasked["beta"]
