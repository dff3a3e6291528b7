"""Inspection of an image: once, within a limit, and with a reason if it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.engines.vllm import node
from sparkcluster.facts.docker import EngineFacts
from sparkcluster.node import image, interpreter
from sparkcluster.node.machine import Unreadable

ID = "sha256:" + "5f" * 32
ANSWER = {
    "python": "/usr/bin/python3",
    "python_version": "3.12.3",
    "platform": "manylinux_2_39_aarch64",
    "version": "0.32.0",
    "ray_version": None,
    "nccl_loaded": "2.30.7",
    "verbs": "yes",
}
PRINTED = "== some banner ==\nsparkcluster-engine " + json.dumps(ANSWER) + "\n"


def request(tmp_path: Path) -> dict[str, Any]:
    return {"state_dir": str(tmp_path / "state"), "image_id": ID, "reference": "vllm/vllm-openai:v1"}


def spark(make_machine: Any, outcomes: list[tuple[int, str] | Unreadable], config: dict[str, Any] | None = None) -> Any:
    """A machine whose ``docker run`` gives ``outcomes`` one after the other; files are real."""
    machine = make_machine({"docker": {f"/images/{ID}/json": {"Config": config or {}}}})
    machine.root = "/"
    remaining = list(outcomes)

    def run(argv: list[str], limit_s: float = 3.0) -> tuple[int, str]:
        machine.ran.append(argv)
        if argv[1] == "rm":
            return 0, ""
        outcome = remaining.pop(0)
        if isinstance(outcome, Unreadable):
            raise outcome
        return outcome

    machine.run = run
    return machine


def test_the_command_line_and_the_cached_result_of_an_inspection(
    monkeypatch: pytest.MonkeyPatch, make_machine: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr(image, "engine", node)
    machine = spark(make_machine, [(0, PRINTED)], {"Entrypoint": ["vllm", "serve"]})
    found = image.main(request(tmp_path), machine=machine)
    argv = machine.ran[0]
    assert argv[6].startswith("sparkcluster-inspect-")
    assert [*argv[:6], *argv[7:]] == [
        "docker", "run", "--rm", "--pull", "never", "--name", "--network", "none", "--memory", "4g",
        "--entrypoint", "python3", ID, "-c", interpreter.SNIPPET,
    ]  # fmt: skip
    facts = EngineFacts.model_validate(found)
    assert (facts.family, facts.version, facts.ray_version) == ("upstream", "0.32.0", None)
    kept = tmp_path / "state" / "images" / (ID.replace(":", "-") + ".json")
    assert json.loads(kept.read_text()) == found
    assert image.main(request(tmp_path), machine=machine) == found
    assert len(machine.ran) == 1


@pytest.mark.parametrize(
    ("outcomes", "why"),
    [
        ([(127, "x")], "python3 in the image exit 127: x"),
        (
            [(125, "docker: No such image: sha256:5f\n")],
            "python3 in the image exit 125: docker: No such image: sha256:5f",
        ),
        ([(0, "hello\n")], "the interpreter printed no answer"),
    ],
)
def test_a_failed_inspection_is_reported_and_not_cached(
    make_machine: Any, tmp_path: Path, outcomes: Any, why: str
) -> None:
    assert image.main(request(tmp_path), machine=spark(make_machine, outcomes)) == {"unread": why}
    assert not (tmp_path / "state").exists()


def test_a_hanging_container_is_removed(make_machine: Any, tmp_path: Path) -> None:
    machine = spark(make_machine, [Unreadable("no answer within 60 s: docker")])
    assert image.main(request(tmp_path), machine=machine) == {"unread": "no answer within 60 s: docker"}
    assert machine.ran[-1] == ["docker", "rm", "--force", "--volumes", machine.ran[0][6]]


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({"Entrypoint": ["vllm", "serve"]}, "upstream"),
        ({"Entrypoint": ["vllm", "serve"], "Env": ["NVIDIA_PRODUCT_NAME=CUDA", "CUDA_VERSION=13.0.2"]}, "upstream"),
        ({"Entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"], "Env": ["NVIDIA_PRODUCT_NAME=CUDA"]}, "other"),
        ({"Labels": {"com.nvidia.vllm.version": "0.10.2+9dd9ca32"}, "Entrypoint": ["vllm", "serve"]}, "ngc"),
        ({"Labels": None, "Env": ["NVIDIA_VLLM_VERSION=25.10"]}, "ngc"),
        ({"Entrypoint": None}, "other"),
    ],
)
def test_the_label_decides_whether_nvidia_built_the_image_and_not_files_or_variables_of_its_base(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], family: str
) -> None:
    monkeypatch.setattr(image, "engine", node)
    assert image.family(config) == family


def test_the_snippet_runs_in_a_plain_interpreter() -> None:
    done = subprocess.run([sys.executable, "-I", "-c", interpreter.SNIPPET], capture_output=True, text=True, check=True)
    found = interpreter.parse(done.stdout)
    assert found["python_version"] == "{}.{}.{}".format(*sys.version_info[:3])
    EngineFacts.model_validate(found)
