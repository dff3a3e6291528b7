"""What a node remembers of files that were hashed: the next look reads nothing of them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkcluster.node import fetch, listing, model_files, record, relay
from sparkcluster.node.record import Record, roots
from sparkcluster.node.wire import Failed


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
    real = model_files.hash_file

    def hash_file(digest, path, progress):
        found.append(Path(path).name)
        return real(digest, path, progress)

    monkeypatch.setattr(listing, "hash_file", hash_file)
    return found


@pytest.mark.parametrize("how", ["small", "unknown"])
def test_a_second_look_reads_nothing(model, state, reads, how):
    first = look(model, state, reads=how)
    assert sorted(reads) == ["config.json", "model.safetensors"]
    assert look(model, state, reads=how) == first
    assert first["config.json"] == hashlib.sha256(b"{}").hexdigest()
    assert len(reads) == 2
    assert look(model, state, reads="all") == first
    assert len(reads) == 4


class Seen(Exception):
    pass


@pytest.mark.parametrize("program", ["list", "download"])
def test_what_was_read_is_kept_while_the_rest_is_still_read(tmp_path, state, monkeypatch, program):
    """A program whose operator is gone ends at once, in the middle of a file."""
    monkeypatch.setattr(record, "_SAVE_EVERY_S", 0.0)
    root = tmp_path / "models--o--m"
    snapshot = root / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "small").write_bytes(b"s")
    with (snapshot / "endless").open("wb") as file:
        file.truncate(1 << 40)
    looks = iter(range(20))

    def check():
        found = Record(state, str(root))
        if found.files:
            ours = program == "download"
            assert {path: entry.ours for path, entry in found.files.items()} == {f"snapshots/{'0' * 40}/small": ours}
            assert found.revisions == ({"0" * 40} if ours else set())
            raise Seen
        next(looks)

    request = {"state_dir": state, "cluster": "atlas", "root": str(root), "revision": "0" * 40, "choice": None}
    read = {
        "list": lambda: relay.list_files({**request, "epoch": 1, "verify": True}, check),
        "download": lambda: fetch._verify(request, str(root), set(), check),
    }[program]
    with pytest.raises(Seen):
        read()


@pytest.mark.parametrize("change", ["content", "time", "inode", "size"])
def test_a_file_that_changed_is_read_again(model, state, reads, change):
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


def test_a_content_that_contradicts_the_record_does_not_replace_it(model, state):
    """The record stays what the other nodes' files are judged by, until the file was mended."""
    right = look(model, state)["config.json"]
    file = model / "config.json"
    before = file.stat()
    file.write_bytes(b"[]")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        record = Record(state, str(model))
        found = listing.listing(str(model), None, None, record, reads="all")
        record.save("atlas")
        (config,) = [each for each in found if each.name == "config.json"]
        assert (config.sha256, config.recorded) == (hashlib.sha256(b"[]").hexdigest(), right)


def test_a_file_that_changes_while_it_is_read_is_an_error(model, state, monkeypatch):
    def hash_file(digest, path, progress):
        with Path(path).open("ab") as file:
            file.write(b"more")
        return "0" * 64

    monkeypatch.setattr(listing, "hash_file", hash_file)
    with pytest.raises(Failed, match="changed while it was read"):
        look(model, state)
    assert roots(state) == []


def test_what_two_programs_add_is_kept(model, state):
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


@pytest.mark.parametrize("content", [b"", b"[]\n", b"{}\n", b"\xff\xfe\n", b'{"root": 7}\n', b"[" * 100_000])
def test_a_damaged_record_is_as_none(model, state, content):
    look(model, state)
    path = Record(state, str(model)).path
    Path(path).write_bytes(content)
    assert Record(state, str(model)).files == {}
    assert set(look(model, state)) == {"config.json", "sub/model.safetensors"}
    assert len(Record(state, str(model)).files) == 2


def test_a_line_that_was_torn_costs_no_other(model, state):
    """The node lost its power."""
    look(model, state)
    path = Path(Record(state, str(model)).path)
    path.write_bytes(path.read_bytes()[:-10])
    assert len(Record(state, str(model)).files) == 1
    look(model, state)
    assert len(Record(state, str(model)).files) == 2


def test_what_only_adds_does_not_read_the_record(model, state):
    """A worker that receives sixty thousand files needs no memory for those that are there; whose they are stays."""
    name, status = "config.json", (model / "config.json").stat()
    first = Record(state, str(model))
    first.add(name, status, "ab" * 32, ours=True)
    first.save("atlas", "r1")
    again = Record(state, str(model))
    again.add(name, status, "cd" * 32)
    again.save("atlas", "r2")
    assert again._files is None
    found = Record(state, str(model))
    assert found.known(name, status) == "cd" * 32
    assert found.is_ours(name, status)
    assert (found.clusters, found.revisions) == ({"atlas"}, {"r1", "r2"})
    (model / name).write_bytes(b"[]")
    again.add(name, (model / name).stat(), "ef" * 32)
    again.save("atlas")
    assert not Record(state, str(model)).is_ours(name, (model / name).stat())


def test_a_cluster_that_found_all_there_is_recorded_as_well(model, state):
    """What it uses now is not another cluster's to remove."""
    Record(state, str(model)).save("nobody")
    assert roots(state) == []
    look(model, state)
    for _ in range(2):
        other = Record(state, str(model))
        other.save("borea")
        assert other._files is None
    assert Record(state, str(model)).clusters == {"atlas", "borea"}
    assert Path(Record(state, str(model)).path).read_text().count("borea") == 1


def test_a_damaged_line_is_passed_over(model, state):
    look(model, state)
    path = Record(state, str(model)).path
    with Path(path).open("a", encoding="utf-8") as file:
        file.write('["x", 1]\n["y", 1, 2, 3, "zz", true]\n7\n["z", 1, 2, 3, "ab", true]\n')
        file.write(f'["v", -1, 2, 3, "{"ab" * 32}", true]\n["w", 1, 2, 3, "{"ab" * 32}", true]\n')
    assert set(Record(state, str(model)).files) == {"config.json", "sub/model.safetensors", "w"}


def test_a_record_that_cannot_be_written_stops_nothing(model, tmp_path):
    (tmp_path / "state").write_text("a file where a directory should be")
    assert set(look(model, str(tmp_path / "state"))) == {"config.json", "sub/model.safetensors"}


def test_of_what_is_kept_below_state_dir_there_is_no_record(tmp_path):
    (tmp_path / "state" / "ray").mkdir(parents=True)
    (tmp_path / "state" / "ray" / "ray.tar.gz").write_bytes(b"ray")
    look(tmp_path / "state" / "ray", str(tmp_path / "state"))
    assert roots(str(tmp_path / "state")) == []


def test_what_is_read_leaves_the_page_cache_every_64_mib(tmp_path):
    """On a Spark it takes memory from the GPU. The file is sparse: its pages are cached nevertheless."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(200 << 20)
    resident = []

    def progress(_size):
        found = subprocess.run(["fincore", "-nbo", "RES", path], capture_output=True, text=True, check=True)
        resident.append(int(found.stdout))

    model_files.hash_file(hashlib.sha256(), str(path), progress)
    assert len(resident) == 50
    assert 0 < max(resident) <= 80 << 20  # with what the kernel reads ahead


def test_many_small_files_take_little_memory(tmp_path):
    """A record of sixty thousand files, read and written: at most 64 MiB in all."""
    program = """
import os, sys
from sparkcluster.node.record import Record
status = os.stat("/")
record = Record(sys.argv[1], "/model")
for number in range(60000):
    record.add("blobs/%064x" % number, status, "%064x" % number, ours=True)
record.save("atlas")
record = Record(sys.argv[1], "/model")
assert len(record.files) == 60000 and record.clusters == {"atlas"}
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 64 << 10  # KiB


@pytest.mark.full
def test_a_list_of_many_recorded_files_takes_little_memory(tmp_path):
    """Sixty thousand in the hub's cache, all of them in the record: at most 64 MiB with all that lists them."""
    program = """
import os, sys
from sparkcluster.node.record import Record
state, home = sys.argv[1] + "/state", sys.argv[1] + "/models--a--b"
os.makedirs(home + "/blobs"), os.makedirs(home + "/snapshots/r/data")
record = Record(state, home)
for number in range(60000):
    name = "%064x" % number
    os.close(os.open(home + "/blobs/" + name, os.O_CREAT))
    os.symlink("../../../blobs/" + name, home + "/snapshots/r/data/%05d.json" % number)
    record.add("blobs/" + name, os.stat(home + "/blobs/" + name), name, ours=True)
record.save("atlas")
"""
    listed = """
import sys
from sparkcluster.node import listing
from sparkcluster.node.record import Record
state, home = sys.argv[1] + "/state", sys.argv[1] + "/models--a--b"
found = listing.listing(home, "r", None, Record(state, home), reads="unknown")
assert len(found) == 60000 and all(file.sha256 == file.blob for file in found)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True)
    done = subprocess.run([sys.executable, "-c", listed, tmp_path], capture_output=True, text=True, check=True)
    assert int(done.stdout.splitlines()[-1]) <= 64 << 10  # KiB


def test_names_of_one_blob_are_both_in_the_record(tmp_path, state, reads):
    home, name = tmp_path / "models--a--b", "ab" * 20
    (home / "blobs").mkdir(parents=True)
    (home / "snapshots" / "r").mkdir(parents=True)
    (home / "blobs" / name).write_bytes(b"{}")
    for each in ("config.json", "generation_config.json"):
        (home / "snapshots" / "r" / each).symlink_to(f"../../blobs/{name}")
    record = Record(state, str(home))
    record.add(f"blobs/{name}", (home / "blobs" / name).stat(), "cd" * 32)
    found = listing.listing(str(home), "r", None, record, reads="unknown")
    assert [file.sha256 for file in found] == ["cd" * 32] * 2
    assert reads == []


def test_what_is_added_later_is_appended_and_counts(model, state):
    status = (model / "config.json").stat()
    record = Record(state, str(model))
    record.add("config.json", status, "ab" * 32, ours=True)
    record.save("atlas")
    inode = Path(record.path).stat().st_ino
    record.add("config.json", status, "cd" * 32, ours=True)
    record.add("x", status, "ef" * 32, ours=False)
    record.save("atlas")
    assert Path(record.path).stat().st_ino == inode, "the same file"
    found = Record(state, str(model))
    assert (found.known("config.json", status), found.known("x", status)) == ("cd" * 32, "ef" * 32)
    with Path(record.path).open("ab") as file:
        file.write(b'["y", 1, 2')  # as one leaves it that was killed
    record.add("z", status, "01" * 32, ours=True)
    record.save("atlas")
    assert set(Record(state, str(model)).files) == {"config.json", "x", "z"}
