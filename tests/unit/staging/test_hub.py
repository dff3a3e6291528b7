"""Downloads by Hugging Face's client, from a hub on this machine: denied, interrupted, resumed, followed and taken over."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from sparkcluster.hosts.program import stream
from sparkcluster.node import common
from sparkcluster.staging.artifacts import download_request
from sparkcluster.staging.copy import Done, Failure, Step
from sparkcluster.staging.outside import run_job
from tests.lab.hub import COMMIT, Hub
from tests.unit.staging.workers import eventually

TINY = "org/tiny"
WEIGHTS = os.urandom(12_000_000)
FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": WEIGHTS}
SIZE = sum(map(len, FILES.values()))


@pytest.fixture
def hub():
    with Hub("127.0.0.1", {TINY: FILES}, gated={"org/gated"}) as made:
        made.repositories["org/gated"] = FILES
        yield made


class World:
    """Node ``a``, which uses this environment's ``hf``, and an operator who uses ``hub``."""

    def __init__(self, host, lease, spark, cluster, tools: Path) -> None:
        self.host, self.lease, self._spark, self._cluster = host, lease, spark, cluster
        found = shutil.which("hf", path=str(Path(sys.executable).parent))
        assert found, "the dependency group dev has huggingface_hub"
        (tools / "hf").symlink_to(found)
        for name in ("HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HOME"):  # the node does not have the operator's token
            host._before[1:1] = ["-u", name]
        self.step = Step("stage weights", lambda _: lease.document(), lambda: False)

    def request(self, model: str = TINY, revision: str = "main", token: str | None = None) -> dict:
        spec = self._cluster({"a": "h"}, playbook={"model": {"id": model, "revision": revision}})
        facts = self._spark(hf_home=str(self.host.hf_home), image=None)
        return download_request(spec, facts, "weights", token)

    def fetch(self, **options) -> Done | Failure:
        return run_job(self.step, self.host, "fetch", self.request(**options))

    def begin(self):
        return stream(self.host, "fetch", {**self.request(), **self.lease.document(), "do": "run"})

    def content(self, name: str, model: str = TINY) -> bytes:
        folder = self.host.hf_home / "hub" / f"models--{model.replace('/', '--')}"
        return (folder / "snapshots" / COMMIT / name).read_bytes()

    def job(self) -> Path:
        (directory,) = Path(self.lease.state_dir).glob("downloads/*")
        return directory

    def clients(self) -> list[int]:
        """Processes of the hub's client on the node."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().split(b"\0")
            except OSError:
                continue
            if b"download" in words and str(self.host.home).encode() in _environ(entry.parent):
                found.append(int(entry.parent.name))
        return found


def _environ(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def world(node, lease, spark, cluster, tmp_path, hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return World(node("a"), lease, spark, cluster, tmp_path / "tools")


def test_a_gated_model_is_denied_and_downloaded_with_the_token(world, hub):
    denied = world.fetch(model="org/gated")
    assert isinstance(denied, Failure)
    assert denied.kind == "hub auth"
    assert hub.sent_bytes == 0
    assert world.fetch(model="org/gated", token=hub.token) == Done(bytes=SIZE)
    assert world.content("model.safetensors", "org/gated") == WEIGHTS
    assert not [
        path for path in Path(world.lease.state_dir).rglob("*") if path.is_file() and b"hf_" in path.read_bytes()
    ]


def test_a_token_goes_only_to_the_hub_that_denied_access_on_this_machine(world, hub):
    with Hub("127.0.0.1", {"org/gated": FILES}) as mirror:
        world.host._before.append(f"HF_ENDPOINT={mirror.address}")
        assert world.fetch(model="org/gated", token=hub.token) == Done(bytes=SIZE)
        assert mirror.served == []
    assert hub.served


def test_an_unreachable_hub_is_reported_within_seconds(world, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    failed = world.fetch()
    assert failed == Failure("a", "no hub", "http://127.0.0.1:9 cannot be reached: [Errno 111] Connection refused")


def test_a_download_continues_without_its_operator_and_the_next_run_follows_it(world, hub):
    hub.rate_bytes_s = 6_000_000
    with world.begin() as running:
        next(line for line in running.lines(60) if b"bytes" in line)
    sent = hub.sent_bytes
    world.lease.let_go()
    eventually(lambda: hub.sent_bytes > sent + 1_000_000)
    world.lease.take()
    assert world.fetch() == Done(bytes=SIZE)
    assert sorted(hub.served) == [(TINY, name) for name in sorted(FILES)], "each file was requested once"


def test_ctrl_c_ends_the_download_on_the_node(world, hub):
    hub.rate_bytes_s = 4_000_000

    def interrupt(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(world.step, world.host, "fetch", world.request(), interrupt)
    eventually(lambda: not world.clients() and not common.is_locked(str(world.job() / "lock")))
    assert common.read_json(str(world.job() / "state.json"))["end"]["kind"] == "cancelled"


def test_a_download_whose_processes_are_killed_restarts_one_file_and_leaves_nothing(world, hub):
    """Since huggingface_hub#4228 no client continues another client's partial file."""
    hub.repositories[TINY] = {**FILES, "a.safetensors": b"x" * 1_000_000}
    hub.rate_bytes_s = 4_000_000
    with world.begin() as running:
        eventually(lambda: hub.sent_bytes > 4_000_000 and (world.job() / "state.json").exists())
        for pid in (json.loads((world.job() / "state.json").read_text())["pid"], *world.clients()):
            os.kill(pid, signal.SIGKILL)
        assert json.loads([*running.lines(60)][-1])["kind"] == "lost"
    blobs = world.host.hf_home / "hub" / "models--org--tiny" / "blobs"
    assert [*blobs.glob("*.incomplete")]
    hub.rate_bytes_s = None
    assert world.fetch() == Done(bytes=SIZE + 1_000_000)
    assert world.content("model.safetensors") == WEIGHTS
    assert hub.served.count((TINY, "a.safetensors")) == 1
    assert not [*blobs.glob("*.incomplete")]
