"""The cache of file hashes on a node: unchanged files are not read a second time."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from sparkcluster.node import file_hashes, listing
from sparkcluster.node.file_hashes import Record, roots


@pytest.fixture
def model(tmp_path):
    place = tmp_path / "model"
    (place / "sub").mkdir(parents=True)
    (place / "config.json").write_bytes(b"{}")
    (place / "sub" / "model.safetensors").write_bytes(b"w" * 100)
    return place


@pytest.fixture
def state(tmp_path):
    return str(tmp_path / "state")


def look(model, state, **more):
    record = Record(state, str(model))
    try:
        return {file.name: file.sha256 for file in listing.listing(str(model), None, None, record, **more)}
    finally:
        record.save("atlas")


@pytest.fixture
def reads(monkeypatch):
    """Names of the files that are read."""
    found = []
    real = file_hashes.hash_file

    def hash_file(digest, path, progress):
        found.append(Path(path).name)
        return real(digest, path, progress)

    monkeypatch.setattr(file_hashes, "hash_file", hash_file)
    return found


def test_unchanged_files_are_not_read_twice(model, state, reads):
    first = look(model, state)
    assert sorted(reads) == ["config.json", "model.safetensors"]
    assert look(model, state) == first
    assert first["config.json"] == hashlib.sha256(b"{}").hexdigest()
    assert len(reads) == 2
    assert look(model, state, verify=True) == first
    assert len(reads) == 4


@pytest.mark.parametrize("change", ["content", "time", "inode", "size"])
def test_a_changed_file_is_hashed_after_the_change(model, state, reads, change):
    look(model, state)
    file = model / "config.json"
    before = file.stat()
    if change == "inode":
        (model / "other").write_bytes(b"[]")
        (model / "other").rename(file)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "time":
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    else:
        file.write_bytes(b"[]" if change == "content" else b"[ ]")
    if change == "size":
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert look(model, state)["config.json"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert reads.count("config.json") == 2
    assert reads.count("model.safetensors") == 1


def test_records_of_two_concurrent_programs_are_both_kept(model, state):
    """Both read the record before either wrote."""
    one, other = Record(state, str(model)), Record(state, str(model))
    for each, name in ((one, "config.json"), (other, "sub/model.safetensors")):
        each.add(name, (model / name).stat(), "ab" * 32, ours=True)
    one.save("atlas")
    other.save("borea")
    found = Record(state, str(model))
    assert set(found.files) == {"config.json", "sub/model.safetensors"}
    assert found.clusters == {"atlas", "borea"}
    assert roots(state) == [str(model)]
    assert found.is_ours("config.json", (model / "config.json").stat())


def test_a_record_of_an_older_version_is_read(model, state):
    """Its first line had only the directory."""
    file = model / "config.json"
    entry = ["config.json", *file_hashes.stamp_of(file.stat()), "ab" * 32, True]
    lines = [{"root": str(model)}, {"cluster": "atlas"}, entry]
    path = Path(Record(state, str(model)).path)
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_text("\n".join(map(json.dumps, lines)))
    found = Record(state, str(model))
    assert (found.clusters, found.is_ours("config.json", file.stat())) == ({"atlas"}, True)
    assert roots(state) == [str(model)]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\n", b"[" * 100_000])
def test_a_damaged_record_is_treated_as_missing(model, state, content):
    look(model, state)
    path = Record(state, str(model)).path
    Path(path).write_bytes(content)
    assert Record(state, str(model)).files == {}
    assert set(look(model, state)) == {"config.json", "sub/model.safetensors"}
    assert len(Record(state, str(model)).files) == 2


def test_an_unwritable_record_is_not_an_error(model, tmp_path):
    (tmp_path / "state").write_text("a file where a directory should be")
    assert set(look(model, str(tmp_path / "state"))) == {"config.json", "sub/model.safetensors"}


def test_read_pages_leave_the_page_cache_every_64_mib(tmp_path):
    """On a Spark the page cache takes memory from the GPU. The file is sparse, but its pages are cached."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(200 << 20)
    resident = []

    def progress(_size):
        found = subprocess.run(["fincore", "-nbo", "RES", path], capture_output=True, text=True, check=True)
        resident.append(int(found.stdout))

    file_hashes.hash_file(hashlib.sha256(), str(path), progress)
    assert len(resident) == 50
    assert 0 < max(resident) <= 80 << 20  # including the kernel's read-ahead
