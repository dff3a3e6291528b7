"""The meaning of a failed download by the hub's client."""

from __future__ import annotations

import hashlib

import pytest

from sparkcluster.node import fetch
from sparkcluster.node.file_hashes import Record
from sparkcluster.node.wire import Failed


def downloaded(tmp_path, contents):
    """A model in the cache: each file has a blob with the given content, named by the first of each pair."""
    root = tmp_path / "hf" / "hub" / "models--o--m"
    (root / "blobs").mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("0" * 40)
    (root / "snapshots" / ("0" * 40)).mkdir(parents=True)
    for name, (named, content) in contents.items():
        blob = root / "blobs" / hashlib.sha256(named).hexdigest()
        blob.write_bytes(content)
        (root / "snapshots" / ("0" * 40) / name).symlink_to(f"../../blobs/{blob.name}")
    return root


def verified(tmp_path, root, before=(), choice=None):
    request = {"revision": "main", "choice": choice, "state_dir": str(tmp_path / "state"), "cluster": "atlas"}
    fetch._verify(request, str(root), set(before))


def test_downloaded_files_are_hashed_and_recorded_as_staged(tmp_path):
    root = downloaded(tmp_path, {"old.bin": (b"old", b"old"), "new.bin": (b"new", b"new")})
    old, new = (f"blobs/{hashlib.sha256(each).hexdigest()}" for each in (b"old", b"new"))
    verified(tmp_path, root, before=[old])
    found = Record(str(tmp_path / "state"), str(root))
    assert {path: (entry.sha256, entry.ours) for path, entry in found.files.items()} == {
        old: (old[6:], False),
        new: (new[6:], True),
    }


def test_a_downloaded_blob_with_unexpected_content_is_removed_and_reported(tmp_path):
    """The hub's client compares only sizes."""
    root = downloaded(tmp_path, {"old.bin": (b"old", b"old"), "new.bin": (b"new", b"bad")})
    old = f"blobs/{hashlib.sha256(b'old').hexdigest()}"
    with pytest.raises(Failed, match=r"^the content of new\.bin does not match its hash on the hub$"):
        verified(tmp_path, root, before=[old])
    assert [f"blobs/{path.name}" for path in (root / "blobs").iterdir()] == [old]


def test_a_corrupt_blob_from_before_is_reported_and_left_to_its_owner(tmp_path):
    root = downloaded(tmp_path, {"old.bin": (b"old", b"bad")})
    (old,) = (root / "blobs").iterdir()
    with pytest.raises(Failed, match=f"^{old} is corrupt and existed before; remove it$"):
        verified(tmp_path, root, before=[f"blobs/{old.name}"])
    assert old.read_bytes() == b"bad"
