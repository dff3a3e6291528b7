"""Downloads from a hub by the real huggingface_hub of the engine's image: only served files."""

from __future__ import annotations

import signal

import pytest

from sparkcluster.lab.engine.tiny_llama import tiny_model_files
from tests.lab.hub import COMMIT, Hub
from tests.lab.test_serving import until

pytestmark = [pytest.mark.full, pytest.mark.engine]

CACHE = "/home/spark/.cache/huggingface/hub"
SERVED = tiny_model_files()
UNREAD = {
    "original/consolidated.00.pth": bytes(2_000_000),
    "metal/model.bin": bytes(3_000_000),
    "onnx/model.onnx": bytes(1_000_000),
    "consolidated.safetensors": SERVED["model.safetensors"],
    "pytorch_model.bin": bytes(800_000),
}
DRAFTER = {
    "config.json": b"{}",
    "model.safetensors": SERVED["model.safetensors"],
    "original/drafter.pth": bytes(70_000),
}
ADAPTER = {"adapter_config.json": b"{}", "adapter_model.safetensors": SERVED["model.safetensors"]}


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab(2, engine="vllm")


@pytest.fixture
def hub(lab):
    """A hub that the lab's nodes and this machine reach; the shell of user ``spark`` has its address."""
    repositories = {"lab/tiny": {**SERVED, **UNREAD}, "lab/drafter": DRAFTER, "lab/adapter": ADAPTER}
    with Hub(lab.sparks[0].state.gateway, repositories) as made:
        for spark in lab.sparks:
            export = f"rm -rf /home/spark/.cache; echo export HF_ENDPOINT={made.address} > /home/spark/.bashrc"
            spark.run(["su", "spark", "-c", export])
        yield made
        for spark in lab.sparks:
            spark.run(["rm", "-rf", "/home/spark/.bashrc", "/home/spark/.cache"])


@pytest.fixture
def inventory(lab, variant):
    args = {
        "speculative-config": {"method": "eagle3", "model": "lab/drafter", "num_speculative_tokens": 2},
        "enable-lora": True,
        "lora-modules": ["x=lab/adapter"],
    }
    return variant(lab, ssh={"user": "spark"}, playbook={"model": {"path": None, "id": "lab/tiny"}, "args": args})


def files(spark, repository):
    folder = f"{CACHE}/models--{repository.replace('/', '--')}/snapshots/{COMMIT}"
    found = spark.run(["find", "-L", folder, "-type", "f", "-printf", "%P\n"]).stdout.split()
    return set(found)


def test_only_served_files_are_downloaded_once_and_copied(lab, hub, inventory, cli):
    staged = cli("stage", inventory, "weights", env={"HF_ENDPOINT": hub.address}).ok()
    expected = {
        "lab/tiny": set(SERVED),
        "lab/drafter": set(DRAFTER) - {"original/drafter.pth"},
        "lab/adapter": {*ADAPTER},
    }
    for repository, names in expected.items():
        assert {spark.name: files(spark, repository) for spark in lab.sparks} == {
            spark.name: names for spark in lab.sparks
        }
    assert sorted(hub.served) == sorted((name, file) for name, names in expected.items() for file in names), staged
    assert "nothing is missing" in cli("stage", inventory, "weights").ok().out


def containers(spark):
    return spark.run(["docker", "ps", "-q", "--filter", "name=sparkcluster-fetch-"]).stdout.split()


def test_a_download_outlives_its_operator_and_ctrl_c_ends_its_container(lab, hub, inventory, cli):
    hub.rate_bytes_s = 100_000
    environment = {"HF_ENDPOINT": hub.address}
    first = cli.start("stage", inventory, "weights", env=environment)
    until(lambda: hub.sent_bytes > 200_000)
    first.kill(signal.SIGKILL)
    first.wait()
    before = hub.sent_bytes
    until(lambda: hub.sent_bytes > before + 200_000)
    shown = cli("status", lab.inventory, "--json").json["staging"]
    assert shown is None or shown["attached"] is False
    second = cli.start("stage", inventory, "weights", env=environment)
    second.wait_for("B downloaded")
    assert sum(len(containers(spark)) for spark in lab.sparks) == 1
    second.kill(signal.SIGINT)
    assert second.wait().code == 130
    until(lambda: not any(containers(spark) for spark in lab.sparks))
    hub.rate_bytes_s = None
    cli("stage", inventory, "weights", env=environment).ok()
    assert {spark.name: files(spark, "lab/tiny") for spark in lab.sparks} == {
        spark.name: set(SERVED) for spark in lab.sparks
    }
