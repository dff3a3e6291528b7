"""The table of vLLM's flags, and findings about unknown arguments or wrong values."""

from __future__ import annotations

import pytest

from sparkcluster import checks
from sparkcluster.checks.check import Context
from sparkcluster.engines.vllm import flags
from sparkcluster.engines.vllm.arguments import trained_context
from sparkcluster.engines.vllm.versions import Versions
from sparkcluster.topology.model import EMPTY


@pytest.mark.parametrize(
    ("name", "low", "high", "there"),
    [
        ("swap-space", (0, 17, 1), (0, 17, 1), True),
        ("swap-space", (0, 19, 0), (0, 19, 0), False),
        ("swap-space", (0, 18, 0), (0, 18, 0), None),  # between two releases that differ
        ("swap-space", (0, 23), None, False),
        ("max-model-len", (0, 11, 1), (0, 11, 1), None),  # older than the table
        ("max-model-len", (0, 40, 0), None, None),  # newer
        ("max-model-len", None, None, None),
    ],
)
def test_versions_of_flags(name, low, high, there):
    assert flags.has(flags.table()[name], Versions(low, high)) is there


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max-model-len", "32k", None),
        ("max-model-len", "auto", None),
        ("max-model-len", "long", "a number, or one as 32k"),
        ("max-model-len", True, "takes a value"),
        ("gpu-memory-utilization", "auto", None),
        ("gpu-memory-utilization", 5, "above 0 and at most 1"),
        ("gpu-memory-utilization", "nan", "above 0 and at most 1"),
        ("max-model-len", -1, None),
        ("max-model-len", -5, "-1 or more"),
        ("max-num-seqs", 0, "a whole number, 1 or more"),
        ("hf-overrides", "{bad", "a mapping"),
        ("compilation-config", 3, None),
        ("enable-prefix-caching", False, None),
        ("enable-prefix-caching", "true", "takes no value"),
        ("headless", False, "no negated form"),
        ("speculative-config", '{"method":"mtp"}', None),
        ("speculative-config", ["mtp"], "a mapping or JSON"),
        ("quantization", ["modelopt"], "no list"),
        ("compilation-config.mode", 3, None),
    ],
)
def test_values_of_flags(name, value, message):
    problem = flags.misuse(flags.find(name), name, value)
    assert problem is None if message is None else message in problem


def findings(cluster, facts=None, **playbook):
    spec = cluster({"a": "192.168.86.11"}, playbook=playbook)
    context = Context(spec, facts or {}, EMPTY)
    return [finding for finding in checks.run_stage(context, ("written",)) if finding.code.startswith("SPEC-")]


def test_an_unknown_argument_is_an_error_with_the_nearest_or_a_warning_for_third_party_images(cluster):
    (finding,) = findings(cluster, image="vllm/vllm-openai:nightly", args={"max-modl-len": 4096})
    assert (finding.code, finding.severity, finding.remedy) == ("SPEC-003", "error", ("write max-model-len",))
    (finding,) = findings(cluster, image="ghcr.io/aeon-7/vllm-dflash:latest", args={"dflash-drafter": "x"})
    assert (finding.code, finding.severity) == ("SPEC-003", "warning")


def test_a_removed_argument_is_reported_with_its_replacement(cluster):
    (finding,) = findings(cluster, image="vllm/vllm-openai:nightly", args={"speculative-disable-by-batch-size": 32})
    assert finding.code == "SPEC-003"
    assert "no longer has" in finding.summary
    assert "V1" in finding.remedy[0]


@pytest.mark.parametrize(
    ("image", "codes"),
    [("nvcr.io/nvidia/vllm:26.03-py3", []), ("nvcr.io/nvidia/vllm:26.04-py3", ["SPEC-004"])],
)
def test_swap_space_was_removed_after_0_17(cluster, image, codes):
    assert [finding.code for finding in findings(cluster, image=image, args={"swap-space": 4})] == codes


@pytest.mark.parametrize(
    ("args", "remedy"),
    [
        ({"gpu-memory-utilization": 5}, "write gpu-memory-utilization: 0.82"),
        ({"hf-overrides": "{bad"}, "write hf-overrides as a mapping"),
    ],
)
def test_an_argument_unknown_to_every_vllm_is_one_error_with_the_replacement(cluster, args, remedy):
    spec = cluster({"a": "192.168.86.11"}, playbook={"args": args})
    (finding,) = (each for each in checks.check_written(spec) if each.severity == "error")
    assert (finding.code, finding.remedy[0].startswith(remedy)) == ("SPEC-005", True)


def test_arguments_of_a_custom_command_are_checked(cluster):
    words = ["bash", "-c", "pip install x && vllm serve org/model --max-modl-len 4096 --port 8000"]
    (finding,) = findings(cluster, image="vllm/vllm-openai:nightly", command=words)
    assert finding.code == "SPEC-003"


def test_an_unknown_check_code_is_reported(cluster):
    allow = [{"code": "HOST-999", "reason": "we know it well"}, {"code": "HOST-010", "reason": "we know it well"}]
    spec = cluster({"a": "192.168.86.11"}, playbook={"allow": allow}, ignore=["SM121-024", "NET-006"])
    (unknown,) = (finding for finding in checks.check_written(spec) if finding.code == "SPEC-007")
    assert "HOST-999" in unknown.summary


@pytest.mark.parametrize(
    ("rope", "tokens"),
    [
        ({"rope_type": "default", "rope_theta": 1e6}, 32768),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 32768),
        ({"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 1024}, 32768),
        (
            {"full_attention": {"rope_type": "linear", "factor": 8}, "sliding_attention": {"rope_type": "default"}},
            262144,
        ),
        ({"rope_type": "yarn", "factor": 1e300}, 1 << 40),
        ([4], 32768),
    ],
)
def test_the_context_limit_of_a_model_includes_its_rope_scaling(rope, tokens):
    """As derived by ``_get_and_verify_max_len`` in vllm/config/model.py, but never less than max_position_embeddings."""
    assert trained_context(32768, rope) == tokens
