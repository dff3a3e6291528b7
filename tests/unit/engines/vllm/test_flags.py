"""The table of vLLM's flags, and what is said of arguments that are not in it or have a wrong value."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkcluster import checks
from sparkcluster.checks.registry import Context
from sparkcluster.engines.vllm import flags
from sparkcluster.engines.vllm.arguments import Arguments, extends_context, trained_context
from sparkcluster.engines.vllm.versions import Versions
from sparkcluster.topology.model import EMPTY

ROOT = Path(__file__).parents[4]
LAB = ROOT / "sparkcluster/lab/engine/stub/site/stubengine/vllm-0.32-flags.tsv"


def test_newest_release_agrees_with_the_table_that_the_stub_parses_by():
    newest = {
        tuple(line.split("\t")[:4])
        for line in flags.TABLE.read_text().splitlines()
        if not line.startswith("#") and line.endswith("\t-")
    }
    lab = {tuple(line.split("\t")) for line in LAB.read_text().splitlines() if line and not line.startswith("#")}
    assert newest == lab
    assert len(newest) > 300


@pytest.mark.parametrize(
    ("name", "low", "high", "there"),
    [
        ("swap-space", (0, 17, 1), (0, 17, 1), True),
        ("swap-space", (0, 19, 0), (0, 19, 0), False),
        ("swap-space", (0, 18, 0), (0, 18, 0), None),  # between two releases that differ
        ("swap-space", (0, 23), None, False),
        ("moe-backend", (0, 15, 1), (0, 15, 1), False),
        ("moe-backend", (0, 17, 1), (0, 17, 1), True),
        ("max-model-len", (0, 11, 1), (0, 11, 1), None),  # older than the table
        ("max-model-len", (0, 40, 0), None, None),  # newer
        ("max-model-len", None, None, None),
        ("linear-backend", (0, 19, 0), (0, 19, 0), False),
        ("linear-backend", (0, 32, 0), (0, 32, 0), True),
        ("max-num-seqs", (0, 20, 1), (0, 31, 0), True),
    ],
)
def test_has(name, low, high, there):
    assert flags.has(flags.table()[name], Versions(low, high)) is there


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max-model-len", "32k", None),
        ("max-model-len", 65536, None),
        ("max-model-len", "auto", None),
        ("max-model-len", "long", "a number, or one as 32k"),
        ("max-model-len", True, "takes a value"),
        ("gpu-memory-utilization", 0.85, None),
        ("gpu-memory-utilization", "auto", None),
        ("gpu-memory-utilization", "most", "a number"),
        ("gpu-memory-utilization", 1.0, None),
        ("gpu-memory-utilization", 5, "above 0 and at most 1"),
        ("gpu-memory-utilization", 0, "above 0 and at most 1"),
        ("gpu-memory-utilization", "nan", "above 0 and at most 1"),
        ("max-model-len", -1, None),
        ("max-model-len", -5, "-1 or more"),
        ("max-num-batched-tokens", 0, "1 or more"),
        ("max-num-batched-tokens", "8k", None),
        ("max-num-seqs", 0, "a whole number, 1 or more"),
        ("cpu-offload-gb", 0, None),
        ("cpu-offload-gb", -1, "0 or more"),
        ("seed", -1, None),
        ("hf-overrides", "{bad", "a mapping"),
        ("hf-overrides", '{"rope_parameters": {}}', None),
        ("hf-overrides", "None", None),
        ("compilation-config", "{bad", "a mapping"),
        ("compilation-config", 3, None),
        ("limit-mm-per-prompt", "image=2", "a mapping"),
        ("max-num-seqs", "4", None),
        ("max-num-seqs", "four", "a whole number"),
        ("enable-prefix-caching", True, None),
        ("enable-prefix-caching", False, None),
        ("enable-prefix-caching", "true", "takes no value"),
        ("enable-prefix-caching", 1, "takes no value"),
        ("headless", False, "no negated form"),
        ("speculative-config", {"method": "mtp"}, None),
        ("speculative-config", '{"method":"mtp"}', None),
        ("speculative-config", "mtp", "a mapping"),
        ("speculative-config", ["mtp"], "a mapping or JSON"),
        ("cudagraph-capture-sizes", [1, 2, 4], None),
        ("quantization", ["modelopt"], "no list"),
        ("max-model-len", None, None),
        ("compilation-config.mode", 3, None),
    ],
)
def test_values(name, value, message):
    problem = flags.misuse(flags.find(name), name, value)
    assert problem is None if message is None else message in problem


def findings(cluster, facts=None, **playbook):
    spec = cluster({"a": "192.168.86.11"}, playbook=playbook)
    context = Context(spec, facts or {}, EMPTY)
    return [finding for finding in checks.run_stage(context, ("written",)) if finding.code.startswith("SPEC-")]


@pytest.mark.parametrize(("image", "reported"), [("sparkarena/spark-vllm-docker:mxfp4", False), ("a/b:mxfp4", True)])
def test_an_argument_of_a_build_that_no_release_has(cluster, image, *, reported):
    assert bool(findings(cluster, image=image, args={"mxfp4-backend": "CUTLASS"})) is reported


def test_an_unknown_argument_is_an_error_with_the_nearest(cluster):
    (finding,) = findings(cluster, image="vllm/vllm-openai:nightly", args={"max-modl-len": 4096})
    assert (finding.code, finding.severity, finding.remedy) == ("SPEC-003", "error", ("write max-model-len",))


def test_an_image_of_others_may_have_arguments_of_its_own(cluster):
    (finding,) = findings(cluster, image="ghcr.io/aeon-7/vllm-dflash:latest", args={"dflash-drafter": "x"})
    assert (finding.code, finding.severity) == ("SPEC-003", "warning")


def test_an_argument_that_went_is_told_with_what_came_after(cluster):
    (finding,) = findings(cluster, image="vllm/vllm-openai:nightly", args={"speculative-disable-by-batch-size": 32})
    assert finding.code == "SPEC-003"
    assert "no longer has" in finding.summary
    assert "V1" in finding.remedy[0]


@pytest.mark.parametrize(
    ("image", "codes"),
    [
        ("nvcr.io/nvidia/vllm:26.03-py3", []),
        ("nvcr.io/nvidia/vllm:26.04-py3", ["SPEC-004"]),
        ("vllm/vllm-openai:nightly", ["SPEC-004"]),
        ("registry.example/engine:1", []),
    ],
)
def test_swap_space_went_after_0_17(cluster, image, codes):
    assert [finding.code for finding in findings(cluster, image=image, args={"swap-space": 4})] == codes


def test_what_the_image_takes_counts_and_not_the_table(cluster, spark):
    fact = spark().model_copy(
        update={
            "image": spark().image.model_copy(
                update={"inside": spark().image.inside.model_copy(update={"flags": ("swap-space", "house-flag")})}
            )
        }
    )
    args = {"swap-space": 4, "house-flag": 1}
    assert findings(cluster, facts={"a": fact}, image="nvcr.io/nvidia/vllm:26.04-py3", args=args) == []


def test_what_the_image_refuses_is_told_once(cluster, spark):
    """By IMG-007, which asked the image; the table has nothing to add."""
    inside = spark().image.inside.model_copy(update={"flags": ("max-model-len",)})
    fact = spark().model_copy(update={"image": spark().image.model_copy(update={"inside": inside})})
    assert findings(cluster, facts={"a": fact}, image="vllm/vllm-openai:nightly", args={"max-modl-len": 1}) == []


def test_a_value_of_the_wrong_kind(cluster):
    (finding,) = findings(cluster, image="vllm/vllm-openai:nightly", args={"enable-prefix-caching": "yes"})
    assert (finding.code, finding.severity) == ("SPEC-005", "error")
    assert "takes no value" in finding.summary


@pytest.mark.parametrize(
    ("args", "remedy"),
    [
        ({"gpu-memory-utilization": 5}, "write gpu-memory-utilization: 0.82"),
        ({"max-num-seqs": 0}, "write max-num-seqs: N, where N is a whole number, 1 or more"),
        ({"hf-overrides": "{bad"}, "write hf-overrides as a section"),
    ],
)
def test_what_no_vllm_takes_is_one_error_with_what_to_write(cluster, args, remedy):
    spec = cluster({"a": "192.168.86.11"}, playbook={"args": args})
    (finding,) = (each for each in checks.check_written(spec) if each.severity == "error")
    assert (finding.code, finding.remedy[0].startswith(remedy)) == ("SPEC-005", True)


def test_a_choice_that_vllm_does_not_offer(cluster):
    (finding,) = findings(cluster, image="vllm/vllm-openai:v0.32.0", args={"kv-cache-dtype": "fp9"})
    assert (finding.code, finding.severity) == ("SPEC-005", "error")
    assert "fp8" in finding.remedy[0]


def test_arguments_of_a_command_are_looked_at(cluster):
    words = ["bash", "-c", "pip install x && vllm serve org/model --max-modl-len 4096 --port 8000"]
    assert [finding.code for finding in findings(cluster, image="vllm/vllm-openai:nightly", command=words)] == [
        "SPEC-003"
    ]
    words = ["vllm", "serve", "org/model", "--max-modl-len", "4096"]
    assert [finding.code for finding in findings(cluster, image="vllm/vllm-openai:nightly", command=words)] == [
        "SPEC-003"
    ]


def test_every_gone_flag_is_really_gone_or_leaving():
    for name in flags.GONE:
        flag = flags.table().get(name)
        assert flag is None or flag.last is not None, name


def test_a_code_that_no_check_has_is_told(cluster):
    allow = [{"code": "HOST-999", "reason": "we know it well"}, {"code": "HOST-010", "reason": "we know it well"}]
    spec = cluster({"a": "192.168.86.11"}, playbook={"allow": allow}, ignore=["NET-996", "NET-006"])
    found = checks.run_stage(Context(spec, {}, EMPTY), ("written",))
    reported = [(finding.code, finding.severity, finding.summary) for finding in found if finding.code == "SPEC-007"]
    assert reported == [
        ("SPEC-007", "warning", "ignore in the inventory lists NET-996, which is not the code of a check"),
        ("SPEC-007", "warning", "allow in the playbook lists HOST-999, which is not the code of a check"),
    ]


def test_a_code_that_was_renamed_is_told_its_new_one(cluster):
    spec = cluster({"a": "192.168.86.11"}, ignore=["SM121-024"])
    (found,) = (finding for finding in checks.check_written(spec) if finding.code == "SPEC-007")
    assert found.remedy == ("write IMG-010",)


@pytest.mark.parametrize(
    ("rope", "tokens"),
    [
        (None, 32768),
        ({"rope_type": "default", "rope_theta": 1e6}, 32768),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"rope_type": "linear", "factor": 2}, 65536),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 32768),
        ({"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 1024}, 32768),
        (
            {"full_attention": {"rope_type": "linear", "factor": 8}, "sliding_attention": {"rope_type": "default"}},
            262144,
        ),
        ({"rope_type": "yarn", "factor": "4"}, 32768),
        ({"rope_type": "yarn", "factor": 1e300}, 1 << 40),
        ([4], 32768),
    ],
)
def test_the_context_of_a_model_counts_its_own_scaling(rope, tokens):
    """As ``_get_and_verify_max_len`` in vllm/config/model.py derives it, but never less than max_position_embeddings."""
    assert trained_context(32768, rope) == tokens


def test_an_extended_context_may_be_written_with_a_dot(cluster):
    for name in ("hf-overrides", "hf-overrides.rope_parameters.factor", "rope-scaling"):
        spec = cluster({"a": "192.168.86.11"}, playbook={"args": {name: 4}})
        assert extends_context(Arguments(spec.playbook))
