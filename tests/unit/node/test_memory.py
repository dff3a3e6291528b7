"""The memory of a node: waiting for its release, reporting leftovers, and dropping the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.node import machine, memory

GIB = 2**30


class Node:
    """A node with memory and /dev/shm set by a test; its clock advances with every pause."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.now = root, 0.0
        self.shm = root / "shm"
        self.shm.mkdir()
        self.comes: list[float] = []
        monkeypatch.setattr(memory, "MEMINFO", str(root / "meminfo"))
        monkeypatch.setattr(memory, "SHARED", str(self.shm))

    def free(self, available: float, *, anonymous: float = 4, free: float = 0) -> None:
        lines = {"MemFree": free, "MemAvailable": available, "AnonPages": anonymous}
        (self.root / "meminfo").write_text("".join(f"{name}:  {int(gib * 2**20)} kB\n" for name, gib in lines.items()))

    def start(self, name: str = "rank") -> str:
        memory.record(str(self.root / name))
        return str(self.root / name)

    def pause(self, seconds: float) -> None:
        before, self.now = int(self.now), self.now + seconds
        if self.comes and int(self.now) > before:
            self.free(self.comes.pop(0))

    def after(self, *directories: str) -> dict[str, Any]:
        request = {"rank_dirs": list(directories), "limit_s": 60}
        return memory.main(request, clock=lambda: self.now, pause=self.pause)


@pytest.fixture
def node(tmp_path, monkeypatch):
    return Node(tmp_path, monkeypatch)


def test_memory_is_waited_for_while_it_increases(node):
    node.free(110)
    rank = node.start()
    node.free(20)
    node.comes = [20 + 3.0 * second for second in range(1, 31)]
    found = node.after(rank)
    assert (found["missing_bytes"], found["waited_s"]) == (0, 30)


def test_memory_that_is_not_released_is_reported_after_ten_seconds_without_a_rise(node):
    node.free(110)
    rank = node.start()
    node.free(20)
    node.comes = [50, 78, 78.1, 78.2]
    found = node.after(rank)
    assert found["missing_bytes"] == pytest.approx(31.8 * GIB, abs=2**20)
    assert found["waited_s"] == 2 + 10


def test_memory_taken_by_other_programs_during_the_wait_is_attributed_to_them(node):
    node.free(110, anonymous=4)
    rank = node.start()
    node.free(70, anonymous=44)
    assert node.after(rank)["missing_bytes"] == 0


def test_leftovers_of_a_rank_in_dev_shm_are_reported_with_their_size(node):
    (node.shm / "psm_old").write_bytes(bytes(2 << 20))
    node.free(110)
    rank = node.start()
    (node.shm / "psm_1a2b").write_bytes(bytes(3 << 20))
    (node.shm / "small").write_bytes(b"x")
    used = node.shm / "psm_used"
    used.write_bytes(bytes(2 << 20))
    (node.shm / "link").symlink_to(used)
    for odd in ("a b", "a\n", os.fsdecode(b"\xff"), "..."):
        (node.shm / odd).write_bytes(bytes(4 << 20))
    with used.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        (left,) = node.after(rank)["shm"]
    assert left == {"name": "psm_1a2b", "size_bytes": 3 << 20, "owner": machine.owner(os.getuid())}


# ------------------------------------------------------------------------------------------------ page cache


def resident(path: Path) -> int:
    """Bytes of a file in the page cache."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = (len(mapped) + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        vector = (ctypes.c_ubyte * pages)()
        start = ctypes.c_char.from_buffer(mapped)
        code = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(len(mapped)), vector)
        del start
        assert code == 0
        return sum(page & 1 for page in vector) * mmap.PAGESIZE


@pytest.fixture
def weights(tmp_path):
    """A repository of the hub's cache: a link in the snapshot, the content in a blob; completely in the page cache."""
    (tmp_path / "hub" / "blobs").mkdir(parents=True)
    (tmp_path / "hub" / "snapshots").mkdir()
    blob = tmp_path / "hub" / "blobs" / "1"
    with blob.open("wb") as file:
        file.write(bytes(8 << 20))
        os.fsync(file.fileno())
    (tmp_path / "hub" / "snapshots" / "model.safetensors").symlink_to("../blobs/1")
    blob.read_bytes()
    if memory_only(blob):
        pytest.skip("the temporary directory is in memory")
    return blob


def memory_only(path: Path) -> bool:
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(path)], capture_output=True, text=True, check=True)
    return kind.stdout.strip() in {"tmpfs", "ramfs"}


def test_weights_leave_the_page_cache_before_a_start_that_needs_the_memory(weights):
    step = {"paths": [str(weights.parent.parent)], "image": None, "limit_s": 1}
    memory.evict({}, {**step, "enough_bytes": 1})
    assert resident(weights) == 8 << 20
    answer = memory.evict({}, {**step, "enough_bytes": 1 << 60})
    assert resident(weights) == 0
    assert answer["image_failed"] is None
    assert answer["free_bytes"] > 0


def test_the_container_that_drops_the_page_cache_is_read_only_without_capabilities_or_network(tmp_path, monkeypatch):
    """With DAC_READ_SEARCH it could read any file of the node, through open_by_handle_at."""
    (tmp_path / "docker").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/told\n')
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert memory.evict({}, {"paths": [], "image": "sha256:1", "limit_s": 5})["image_failed"] is None
    told = (tmp_path / "told").read_text().split("\n")
    assert told[5].startswith("sparkcluster-evict-")
    assert [*told[:5], *told[6 : told.index("-c")]] == [
        "run", "--rm", "--pull", "never", "--name", "--network", "none", "--user", "0:0", "--read-only",
        "--security-opt", "no-new-privileges", "--log-driver", "none", "--cap-drop", "ALL",
        "--entrypoint", "python3", "sha256:1",
    ]  # fmt: skip
