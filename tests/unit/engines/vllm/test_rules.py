"""Every rule on a case where it fires, and on a near miss: another image, version, driver or model."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from sparkcluster import checks, topology
from sparkcluster.checks.check import CATALOGUE, Context
from sparkcluster.engines.vllm import family_flags, versions
from sparkcluster.engines.vllm.rules.served import Served
from sparkcluster.spec import load

ROOT = Path(__file__).parents[4]
# Tests are imported by file and not as a package, so a neighbouring module is read by path.
CODES = {"IMG-010", "IMG-013", "MDL-004", "SPEC-008", "SPEC-009"}
CASES = runpy.run_path(str(Path(__file__).with_name("rule_cases.py")))["CASES"]


def found(cluster, spark, case):
    """Findings of a playbook that a case describes, with facts only if it has some."""
    hosts = {f"n{number}": f"192.168.86.1{number}" for number in range(case.get("nodes", 1))}
    keys = ("model", "image", "args", "env", "setup", "mounts", "command", "executor", "goal", "tensor_parallel",
            "verify", "secrets", "container")  # fmt: skip
    written = {key: case[key] for key in keys if key in case}
    if isinstance(written.get("model"), str):
        label = written["model"]
        written["model"] = {"path": label} if label.startswith(("/", "~")) else {"id": label}
    if "command" in written:
        written.pop("args", None)
    spec = cluster(hosts, playbook=written, **case.get("inventory", {}))
    if "facts" not in case:
        return checks.check_written(spec)
    facts = {name: spark(**{"image": None, **case["facts"]}) for name in hosts}
    stage = Context(spec, facts, topology.build(spec, facts))
    return checks.run_stage(stage, ("written",))


IDS = [f"{case['code']}-{index}" for index, case in enumerate(CASES)]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_rules_fire_on_their_case_and_not_on_near_misses(cluster, spark, case):
    findings = [finding for finding in found(cluster, spark, case["fires"]) if finding.code == case["code"]]
    assert findings, "did not fire"
    assert {finding.severity for finding in findings} == {case["severity"]}
    assert all(finding.summary and finding.seen and finding.why and finding.remedy for finding in findings)
    for near in case["misses"]:
        wrong = [finding for finding in found(cluster, spark, near) if finding.code == case["code"]]
        if "softer" in near:
            assert {finding.severity for finding in wrong} == {near["softer"]}, near
        else:
            assert not wrong, near


def test_every_rule_has_a_case_and_a_near_miss():
    coded = {code for code in CATALOGUE if code.startswith("SM121-")} | CODES
    assert coded == {case["code"] for case in CASES}
    assert all(any("softer" not in near for near in case["misses"]) for case in CASES)


def test_every_rule_cites_its_source_and_reason():
    for code, check in CATALOGUE.items():
        if code.startswith("SM121-") or code in CODES:
            assert check.stage == "written"
            assert len(check.source) > 5, code
            assert len(check.why) > 40, code
            assert not check.why.startswith("VLLM"), code


def test_no_rule_reports_unknown_facts(cluster):
    spec = cluster(
        {"a": "192.168.86.11"},
        playbook={"model": {"id": "nobody/secret-model"}, "image": "registry.example/engine:7"},
    )
    assert [finding for finding in checks.check_written(spec) if finding.code.startswith("SM121")] == []


@pytest.mark.parametrize(
    ("reference_", "family", "low", "high", "moves"),
    [
        ("nvcr.io/nvidia/vllm:26.04-py3", "ngc", (0, 19, 0), (0, 19, 0), False),
        ("nvcr.io/nvidia/vllm:26.07-py3", "ngc", (0, 20, 1), (0, 31, 0), False),
        ("nvcr.io/nvidia/vllm:27.02-py3", "ngc", (0, 31, 0), None, False),
        ("vllm/vllm-openai:v0.19.0-cu130", "upstream", (0, 19, 0), (0, 19, 0), False),
        ("vllm/vllm-openai:nightly", "upstream", (0, 23), None, True),
        ("vllm/vllm-openai:nightly-aarch64@sha256:00", "upstream", (0, 23), None, False),
        ("localhost:5000/engine", "other", None, None, True),
        ("ghcr.io/z-lab/vllm-openai:gemma4-dflash-cu130", "other", None, None, False),
    ],
)
def test_versions_from_image_references(reference_, family, low, high, moves):
    seen = versions.of_reference(reference_)
    assert (seen.family, seen.moves) == (family, moves)
    assert (seen.versions.low, seen.versions.high) == (low, high)


@pytest.mark.parametrize(
    ("name", "kind", "family"),
    [
        ("nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-NVFP4", "modelopt", "Nemotron 3 Nano Omni"),
        ("unsloth/Qwen3.6-27B-NVFP4", "compressed-tensors", "Qwen3.6"),
        ("Qwen/Qwen3-Coder-Next-FP8", "fp8", "Qwen3-Coder-Next"),
        ("bg-digitalservices/Gemma-4-26B-A4B-it-NVFP4", "modelopt", "Gemma 4 26B-A4B"),
        ("openai/gpt-oss-120b", "mxfp4", "gpt-oss"),
        ("Qwen/Qwen3-32B-AWQ", "awq", "Qwen3"),
        ("Qwen/Qwen3-4B-Instruct-2507-FP8", "fp8", "Qwen3 Instruct"),
        ("someone/Qwen3-8B-mix", None, "Qwen3"),
        ("someone/else", None, None),
    ],
)
def test_families_from_model_names(name, kind, family):
    assert family_flags.kind(name) == kind
    seen = family_flags.family(name, None)
    assert (seen.name if seen else None) == family


def test_config_json_determines_the_kind(cluster, spark):
    """A repository may have any name; the model on the node will be loaded."""
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128, "max_position_embeddings": 32768,
        "quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
    }  # fmt: skip
    weights = {"path": "/w", "config": config, "files": [{"name": "a.safetensors", "size_bytes": 1}]}
    spec = cluster({"a": "192.168.86.11"}, playbook={"model": {"id": "nvidia/Own-NVFP4"}})
    facts = {"a": spark(weights=weights)}

    seen = Served(Context(spec, facts, topology.build(spec, facts)))

    assert (seen.kind, seen.weights, seen.moe, seen.context) == ("compressed-tensors", "nvfp4", True, 32768)
    assert seen.model is not None
    assert seen.model.name == "Qwen3"


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks").glob("*.yaml")), ids=lambda path: path.stem)
def test_bundled_playbooks_have_no_warning_that_they_do_not_allow(path, cluster):
    playbook = load.read_playbook(path)[0]
    spec = cluster({"a": "192.168.86.11"}, runtime={"kind": "docker" if playbook.image else "process"})
    spec = spec.__class__(spec.inventory, playbook, path, path)

    findings = checks.check_written(spec)

    allowed = {allow.code for allow in playbook.allow}
    if path.stem in {"gemma-4-12b-coder", "gemma-4-12b-coder-plain", "laguna-xs.2", "qwen3.6-35b-a3b-dflash"}:
        allowed.add("MDL-004")  # no public source names a commit of its model, or of its drafter
    assert [finding for finding in findings if finding.severity != "info" and finding.code not in allowed] == []
    assert "error" not in {finding.severity for finding in findings}
