"""A support bundle can be published: no byte of a planted secret is in it."""

from __future__ import annotations

import gzip
import stat
import tarfile

import pytest

from sparkcluster import errors
from sparkcluster.facts.collect import Collected
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.facts.running import Observation, RankSeen, Reply, Running
from sparkcluster.findings import Finding, edit
from sparkcluster.inspect import bundle
from sparkcluster.inspect.cluster import View
from sparkcluster.inspect.doctor import Diagnosis

KEY = "tr0ub4dor-and-3-more"
TOKEN, FLAG, SECOND, OTHER, LICENCE = (
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "swordfish77",
    "herring-red",
    "correct-horse",
    "playbookSecretValue",
)
HARDWARE = [
    "1423025012345",
    "S6XYNJ0T123456",
    "PF4ABCDE",
    "6b1a0c55-1234-4b10-b10b-0000deadbeef",
    "3c:6d:66:cc:b3:b7",
    "2d:1a:17",
    "4ebb:47ff:fe2a:6532",
    "4cbb:4703:002d:1a17",
]
LINES = (
    f"(APIServer pid=1) INFO non-default args: {{'api_key': ['{KEY}'], 'max_model_len': 1024}}",
    f"pulling https://bob:{OTHER}@registry.example/v2/ failed at 10.0.0.1:8000 with {TOKEN}",
    f"vllm serve /m --api-key {FLAG} --port 8000",
    f'DGX_SERIAL_NUMBER="{HARDWARE[0]}"',
    f"nvme0: Serial Number: {HARDWARE[1]}",
    f"Product: GX10, serial {HARDWARE[2]}",
    f"GPU 0: NVIDIA GB10 (UUID: GPU-{HARDWARE[3]})",
    f"link/ether {HARDWARE[4]} brd ff:ff:ff:ff:ff:ff; mac 4c:bb:47:{HARDWARE[5]}",
    f"GID 1 fe80:0000:0000:0000:{HARDWARE[6]} and node_guid: {HARDWARE[7]}",
)
KEPT = ["192.168.177.11", "12 * 17", "Using network IB", "RUN-004", "tokens_per_s", "10.0.0.1:8000"]


@pytest.fixture
def diagnosis(spark, cluster, monkeypatch):
    monkeypatch.setenv("SPARK_API_KEY", KEY)
    monkeypatch.setenv("MODEL_LICENCE", LICENCE)
    facts = spark({"enp1s0f0np0": "192.168.177.11/24"})
    facts = facts.model_copy(update={"kernel_log": (*LINES, "NVRM: loading")})
    spec = cluster(
        {"alpha": "192.168.86.11"},
        playbook={
            "secrets": ["MODEL_LICENCE"],
            "env": {"WANDB_API_KEY": OTHER, "URL": f"http://x:{OTHER}@y/"},
        },
        api={"key": {"env": "SPARK_API_KEY"}},
    )
    argv = ["docker", "run", "--env", f"HF_TOKEN={TOKEN}", "vllm", "serve", "--api-key", FLAG, SECOND, "--port", "8000"]
    record = {
        "plan": {
            "model": "m",
            "nodes": {
                "alpha": {
                    "group": "default",
                    "env": {"AWS_SECRET_ACCESS_KEY": OTHER},
                    "containers": [{"name": "one-1-alpha", "launcher": {}, "argv": argv}],
                }
            },
        }
    }
    rank = RankSeen(
        name="one-1-alpha",
        state="running",
        error=LINES[1],
        launcher={"engine": argv, "ray": {"token": True}},
        log=(*LINES, "Using network IB", *LINES),
        gpu=LINES[6],
    )
    reply = Reply("default", "alpha", 0.1, 30.0, 9, f"12 * 17 {LICENCE} {LINES[0]}", message=LINES[2])
    seen = Running(
        {"alpha": Observation(ranks=(rank,))}, {"default": reply}, ReleaseFact(number=1, plan_hash="x", record=record)
    )
    finding = Finding("RUN-004", "error", "it answers garbage", "alpha", "; ".join(LINES), "why", (edit("fix it"),))
    return Diagnosis(View(spec, Collected({}, {}), {"alpha": facts}), seen, (finding,), 1.0)


def test_the_bundle_contains_no_secret_and_no_serial_number(diagnosis, tmp_path):
    path = tmp_path / "b.tar.gz"
    bundle.write(path, diagnosis, {})
    every = gzip.decompress(path.read_bytes())
    for planted in [KEY, TOKEN, FLAG, SECOND, OTHER, LICENCE, *HARDWARE]:
        assert planted.encode() not in every, planted
    for kept in KEPT:
        assert kept.encode() in every, kept


def test_only_its_owner_may_read_a_bundle_and_an_existing_file_is_replaced_completely(diagnosis, tmp_path):
    path = tmp_path / "b.tar.gz"
    path.write_text("old")
    path.chmod(0o644)
    bundle.write(path, diagnosis, {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    with tarfile.open(path) as archive:
        assert {one.mode for one in archive.getmembers()} == {0o600}


def test_a_bundle_that_fails_halfway_leaves_nothing(diagnosis, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    with pytest.raises(errors.UsageError, match="No space left on device"):
        bundle.write(tmp_path / "b.tar.gz", diagnosis, {})
    assert list(tmp_path.iterdir()) == []
