"""The archive of Ray on a node: unpacked completely or not at all, once, and only with the expected hash."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile

import pytest

from sparkcluster.node import unpack


@pytest.fixture
def unpacked(tmp_path):
    """Unpacks an archive with files of these names; returns the created directory."""

    def make(*names, sha256=None):
        archive = tmp_path / "archives" / "2.60" / "ray.tar.gz"
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, "w:gz") as out:
            for name in names:
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = (tarfile.DIRTYPE, 0o755) if name.endswith("/") else (tarfile.REGTYPE, 0o644)
                entry.size = 0 if entry.isdir() else 1
                out.addfile(entry, io.BytesIO(b"x"))
        digest = sha256 or hashlib.sha256(archive.read_bytes()).hexdigest()
        unpack.unpack({}, {"archive": str(archive), "path": str(tmp_path / "2.60"), "sha256": digest})
        return tmp_path / "2.60"

    return make


def test_every_user_can_read_unpacked_files_and_the_archive_is_removed(unpacked, tmp_path):
    (tmp_path / "archives/2.60/unpacked").mkdir(parents=True)
    (tmp_path / "archives/2.60/unpacked/left").touch()  # by a killed run
    before = os.umask(0o077)
    try:
        place = unpacked("./", "./ray/", "./ray/start")
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (place, place / "ray", place / "ray/start")] == [
        0o755,
        0o755,
        0o644,
    ]
    assert sorted(path.name for path in place.iterdir()) == ["ray"]
    assert not list(tmp_path.glob("archives/*"))


def test_existing_files_are_not_changed_since_containers_may_mount_them(unpacked):
    inode = unpacked("a").stat().st_ino
    again = unpacked("b")
    assert (again.stat().st_ino, (again / "a").exists(), (again / "b").exists()) == (inode, True, False)


def test_an_unexpected_hash_is_refused_and_the_archive_removed(unpacked, tmp_path):
    with pytest.raises(OSError, match="is corrupt: its SHA-256 differs"):
        unpacked("a", sha256="0" * 64)
    assert not list(tmp_path.rglob("ray.tar.gz"))
    assert not (tmp_path / "2.60").exists()
