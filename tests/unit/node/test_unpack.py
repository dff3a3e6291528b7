"""Archives of Ray that a hostile node packed: nothing appears outside, and no archive takes the disk or the memory."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile

import pytest

from sparkcluster.node import unpack


def member(name, content=b"x", **more):
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    for key, value in more.items():
        setattr(entry, key, value)
    return entry, content


@pytest.fixture
def packed(tmp_path):
    """Unpacks an archive of members, or raw bytes; the directory that appeared."""

    def make(*members, raw=None, sha256=None):
        archive = tmp_path / "ray.tar.gz"
        if raw is None:
            with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as out:
                for entry, content in members:
                    out.addfile(entry, io.BytesIO(content))
        else:
            archive.write_bytes(raw)
        digest = sha256 or hashlib.sha256(archive.read_bytes()).hexdigest()
        (tmp_path / "ray").mkdir(exist_ok=True)
        unpack.unpack({}, {"archive": str(archive), "path": str(tmp_path / "ray" / "2.60"), "sha256": digest})
        return tmp_path / "ray" / "2.60"

    return make


def nothing_appeared(folder):
    return {path.name for path in folder.iterdir()} <= {"ray", "ray.tar.gz"} and not (folder / "ray" / "2.60").exists()


def test_files_and_directories_are_unpacked(packed):
    place = packed(
        member("ray", b"", type=tarfile.DIRTYPE, mode=0o700),
        member("ray/start", b"#!", mode=0o4755),
        member("a/b", b""),
    )
    assert (place / "ray" / "start").read_bytes() == b"#!"
    assert (place / "ray" / "start").stat().st_mode & 0o7777 == 0o755
    assert (place / "a" / "b").stat().st_mode & 0o7777 == 0o644


@pytest.mark.parametrize(
    "members",
    [
        [member("../evil")],
        [member("a/../../evil")],
        [member("/tmp/evil-of-a-test")],
        [member("..", b"", type=tarfile.DIRTYPE)],
        [member("a", b"", type=tarfile.SYMTYPE, linkname="/etc")],
        [member("a", b"", type=tarfile.SYMTYPE, linkname="../.."), member("a/evil")],
        [member("a"), member("b", b"", type=tarfile.LNKTYPE, linkname="a")],
        [member("a", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=3)],
        [member("a", b"", type=tarfile.FIFOTYPE)],
        [member("a"), member("a")],
        [member("a"), member("a", b"", type=tarfile.DIRTYPE)],
        [member("a", pax_headers={"path": "a\0b"})],
        [member("sparse", b"", pax_headers={"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 24)})],
    ],
)
def test_an_archive_that_pack_does_not_make_is_refused(packed, tmp_path, members):
    with pytest.raises(OSError):
        packed(*members)
    assert nothing_appeared(tmp_path)
    assert not os.path.lexists("/tmp/evil-of-a-test")


def test_another_hash_than_the_expected_one_is_refused_and_the_archive_removed(packed, tmp_path):
    with pytest.raises(OSError, match="is corrupt: its SHA-256 differs"):
        packed(member("a"), sha256="0" * 64)
    assert not (tmp_path / "ray.tar.gz").exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"no archive", gzip.compress(b"no tar" * 1000), gzip.compress(b"\xff" * 512), b"\x1f\x8b" + bytes(100),
    ],
    ids=["empty", "text", "text compressed", "no tar", "no gzip"],  # a compressed one has the time in it
)  # fmt: skip
def test_garbage_is_reported(packed, tmp_path, raw):
    with pytest.raises(OSError, match="is damaged"):
        packed(raw=raw)
    assert nothing_appeared(tmp_path)


@pytest.mark.parametrize("limit", ["_MOST_BYTES", "_MOST_MEMBERS", "_PIECE_BYTES"])
def test_a_bomb_ends_at_a_limit(packed, tmp_path, monkeypatch, limit):
    """Bytes in all, members, and headers, which tarfile reads at once."""
    monkeypatch.setattr(unpack, limit, {"_MOST_BYTES": 1 << 20, "_MOST_MEMBERS": 50, "_PIECE_BYTES": 1 << 20}[limit])
    bombs = {
        "_MOST_BYTES": [member("zeros", bytes(1 << 21))],
        "_MOST_MEMBERS": [member(str(number), b"") for number in range(60)],
        "_PIECE_BYTES": [member("a", pax_headers={"comment": "x" * (1 << 21)})],
    }
    with pytest.raises(OSError, match=r"too large|more than 50 members"):
        packed(*bombs[limit])
    assert nothing_appeared(tmp_path)
