"""Sending a file of this machine to a node: real programs on both sides, and operators that are paused, killed and replaced."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest

from sparkcluster.errors import LeaseLost, StageError
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.local import LocalHost
from sparkcluster.node import common
from sparkcluster.runtime.lease import Lease
from sparkcluster.staging.copy import Step
from sparkcluster.staging.send import send
from tests.unit.staging.workers import eventually

CONTENT = os.urandom(1 << 20) * 24
SHA256 = hashlib.sha256(CONTENT).hexdigest()

# An operator who takes the lease, with a slow disk: 24 MB in five seconds.
OPERATOR = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from sparkcluster.errors import LeaseLost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.local import LocalHost
from sparkcluster.runtime import lease as module
from sparkcluster.runtime.lease import Lease
from sparkcluster.staging import send
from sparkcluster.staging.copy import Step

class Slow(type(Path())):
    def open(self, *args, **options):
        file = super().open(*args, **options)
        read = file.read
        class Reader:
            def __getattr__(self, name):
                return getattr(file, name)
            def __enter__(self):
                return self
            def __exit__(self, *_):
                file.close()
            def read(self, size):
                time.sleep(0.05)
                return read(size)
        return Reader()

state, source, root, sha256 = sys.argv[1:]
module.TTL_S, module.HEARTBEAT_S = 4, 1
fleet = Fleet({"a": LocalHost("a")})
inventory = SimpleNamespace(cluster="atlas", state_dir=state)
with Lease(fleet, inventory, "stage", "staging").acquire(["a"]) as lease:
    step = Step("stage ray", lease.changer.lease, lambda: False)
    try:
        send.send(step, fleet["a"], Slow(source), {"root": root, "path": "ray.tar.gz", "sha256": sha256})
    except LeaseLost as error:
        print(error.message)
        sys.exit(9)
"""


class World:
    """This machine as node ``a``, and a file to send there."""

    def __init__(self, place: Path) -> None:
        self.state, self.root, self.source = place / "state", place / "archives", place / "ray.tar.gz"
        self.source.write_bytes(CONTENT)
        self.request = {"root": str(self.root), "path": "ray.tar.gz", "sha256": SHA256}
        self.fleet = Fleet({"a": LocalHost("a")})
        self.operators: list[subprocess.Popen] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.operators:
            each.kill()
            each.wait()
            each.stdout.close()

    def operator(self) -> subprocess.Popen:
        argv = [sys.executable, "-c", OPERATOR, *map(str, (self.state, self.source, self.root, SHA256))]
        self.operators.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        return self.operators[-1]

    def lease(self) -> Lease:
        return Lease(self.fleet, SimpleNamespace(cluster="atlas", state_dir=str(self.state)), "stage", "staging")

    def step(self, lease: Lease) -> Step:
        return Step("stage ray", lease.changer.lease, lambda: False)

    def written(self) -> int:
        """Bytes of partial files."""
        return sum(file.stat().st_size for file in self.root.glob(".*.partial"))

    def whole(self) -> Path:
        return self.root / "ray.tar.gz"


@pytest.fixture
def world(tmp_path):
    with World(tmp_path) as made:
        yield made


def test_a_file_arrives_complete_and_once(world):
    with world.lease().acquire(["a"]) as lease:
        seen = []
        step = world.step(lease)
        assert send(step, world.fleet["a"], world.source, world.request, lambda *each: seen.append(each)).bytes == len(
            CONTENT
        )
        assert world.whole().read_bytes() == CONTENT
        assert world.whole().stat().st_mode & 0o777 == 0o644
        assert seen[-1] == (len(CONTENT), len(CONTENT))
        assert send(step, world.fleet["a"], world.source, world.request).bytes == 0
        assert [file.name for file in world.root.iterdir()] == ["ray.tar.gz"]


@pytest.mark.full  # the lease lapses in real time
def test_a_paused_operator_that_lost_the_lease_writes_nothing_more(world):
    first = world.operator()
    eventually(lambda: world.written() > 4 << 20)
    first.send_signal(signal.SIGSTOP)
    eventually(lambda: not common.is_locked(str(world.state / "clusters/atlas/staging.lock")))
    with world.lease().acquire(["a"]):
        before = world.written()
        first.send_signal(signal.SIGCONT)
        assert first.wait(60) == 9
        assert first.stdout.read().startswith("a refused the change: epoch 1 is over: ")
        assert world.written() <= before + (8 << 20), "the node checks once per second"
        assert not world.whole().exists()


def test_a_file_with_a_different_hash_is_discarded(world):
    with world.lease().acquire(["a"]) as lease, pytest.raises(StageError, match="a wrong SHA-256") as caught:
        send(world.step(lease), world.fleet["a"], world.source, {**world.request, "sha256": "0" * 64})
    assert caught.value.node == "a"
    assert not world.whole().exists()
    assert world.written() == 0


def test_a_path_outside_its_directory_is_refused(world, tmp_path):
    with world.lease().acquire(["a"]) as lease, pytest.raises(StageError, match="not below"):
        send(world.step(lease), world.fleet["a"], world.source, {**world.request, "path": "../x"})
    assert not (tmp_path / "x").exists()


def test_an_operator_without_a_lease_sends_nothing(world):
    step = Step("stage ray", world.lease().changer.lease, lambda: False)
    with pytest.raises(LeaseLost, match="epoch 0 is over"):
        send(step, world.fleet["a"], world.source, world.request)
    assert not world.root.exists()
