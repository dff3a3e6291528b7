"""Every known failure is recognized by its log line, and the root cause precedes its consequences."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.engines.causes import cause
from sparkcluster.engines.vllm import ENGINE
from sparkcluster.engines.vllm.signatures import SIGNATURES

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "golden" / "logs" / "causes.json").read_text())
NOISE = ["INFO 11-21 03:28:04 [model.py:733] Resolved architecture: LlamaForCausalLM"] * 3


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_recorded_failure_is_recognized(case: dict[str, Any]) -> None:
    found = cause(ENGINE, [*NOISE, *case["lines"], *NOISE], case["exit_code"])
    assert found is not None
    assert case["summary"] in found.summary
    assert case.get("hint", "") in (found.hint or "")
    assert "\n" not in found.summary
    assert not found.summary.endswith(".")
    assert "{" not in found.summary + (found.hint or "")


def test_every_signature_has_a_recorded_line() -> None:
    """A signature without a recorded line may match nothing at all."""
    shown = set()
    for case in CASES:
        for signature in SIGNATURES:
            if signature.match(case["lines"]):
                shown.add(signature.name)
                break
    exempt = {"argument-value", "architecture", "no-image", "docker-group", "nccl"}
    assert {signature.name for signature in SIGNATURES} - shown == exempt


@pytest.mark.parametrize(
    ("line", "summary"),
    [
        ("ValueError: Model architectures ['MoonForCausalLM'] are not supported for now.", "['MoonForCausalLM']"),
        ("Error response from daemon: No such image: sha256:abc", "image is not on that node"),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77, remote process exited", "NCCL"),
    ],
)
def test_lines_with_a_known_form_only(line: str, summary: str) -> None:
    found = cause(ENGINE, [line], 1)
    assert found is not None
    assert summary in found.summary


def test_a_healthy_log_has_no_cause() -> None:
    log = (Path(__file__).parents[2] / "golden" / "logs" / "vllm-0.32-ray-tp2-head.log").read_text()
    assert cause(ENGINE, log.splitlines(), None) is None


def test_the_kernels_out_of_memory_report_precedes_the_log() -> None:
    found = cause(ENGINE, ["OSError: [Errno 28] No space left on device"], 137, oom_killed=True)
    assert found is not None
    assert "kernel killed it" in found.summary
