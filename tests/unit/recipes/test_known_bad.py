"""Command lines of the guides, broken in the ways that owners have broken them: imported, then told by a rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkcluster.errors import UsageError
from sparkcluster.linting import lint
from sparkcluster.recipes import convert

DATA = Path(__file__).parents[2] / "data/recipes"
NGC = "nvcr.io/nvidia/vllm:26.04-py3 vllm serve"
NIGHTLY = "vllm/vllm-openai:nightly"


@pytest.mark.parametrize(
    ("recipe", "old", "new", "code"),
    [
        ("qwen3.6-27b", "--dtype bfloat16", "--quantization modelopt", "SM121-041"),
        ("qwen3.6-35b-a3b", "--enable-auto-tool-choice --tool-call-parser qwen3_xml", "--enable-auto-tool-choice", "SM121-080"),
        ("qwen3.6-35b-a3b", "--enable-auto-tool-choice ", "", "SM121-080"),
        ("qwen3.6-35b-a3b", "qwen3_xml", "hermes", "SM121-082"),
        ("laguna-xs.2", "--trust-remote-code", "--trust-remote-code --kv-cache-dtype fp8", "SM121-100"),
        ("laguna-xs.2", NIGHTLY, NGC, "SM121-101"),
        ("laguna-xs.2", "-e VLLM_USE_DEEP_GEMM=0", "", "SM121-102"),
        ("qwen3.6-35b-a3b", "-e CUTE_DSL_ARCH=sm_121a", "-e VLLM_USE_FLASHINFER_MOE_FP4=0", "SM121-004"),
        ("nemotron-3-nano", "25.12.post1-py3", "26.04-py3", "SM121-006"),
        ("qwen3-coder-next", "vllm/vllm-openai:cu130-nightly", NGC, "SM121-009"),
        ("qwen3-coder-next", "--enable-prefix-caching", "", "SM121-064"),
        ("qwen3.5-122b", "--moe-backend marlin", "--moe-backend flashinfer_trtllm", "SM121-002"),
        ("gemma-4-26b-a4b", "--trust-remote-code", "--tensor-parallel-size 2", "SM121-122"),
        ("gemma-4-26b-a4b", "--tool-call-parser pythonic", "--tool-call-parser hermes", "SM121-082"),
        ("gemma-4-31b", "gemma4-cu130", "gemma4", "SM121-021"),
        ("gemma-4-12b-coder-mtp", "--kv-cache-dtype fp8", "--kv-cache-dtype nvfp4", "SM121-107"),
        ("nemotron-3-nano", "--reasoning-parser-plugin /models/nano_v3_reasoning_parser.py", "", "SM121-084"),
        ("nemotron-3-nano", "--max-num-seqs 8", "--cpu-offload-gb 20", "SM121-065"),
        ("qwen3.6-35b-a3b", "-e CUTE_DSL_ARCH=sm_121a", "-e CUDA_VISIBLE_DEVICES=1", "SM121-127"),
        ("qwen3.6-35b-a3b", NIGHTLY, "vllm/vllm-openai-rocm:nightly", "SM121-032"),
        ("nemotron-3-super", "vllm/vllm-openai:cu130-nightly", "nvcr.io/nvidia/vllm:26.04-py3", "SM121-003"),
        ("qwen3.6-27b-1m", "-e VLLM_ALLOW_LONG_MAX_MODEL_LEN=1", "", None),
        ("qwen3.6-35b-a3b", "--max-num-seqs 4", "--swap-space 8", "SPEC-004"),
        ("qwen3.6-35b-a3b", "--max-num-seqs 4", "--max-nmu-seqs 4", "SPEC-003"),
        ("qwen3.6-35b-a3b", "0.85", "0.97", "SM121-060"),
    ],
)  # fmt: skip
def test_a_command_line_that_is_broken_is_told(tmp_path, recipe, old, new, code):
    text = (DATA / f"{recipe}.sh").read_text()
    assert old in text
    made = [convert(script, "x.sh").text for script in (text, text.replace(old, new))]
    files = [tmp_path / "good.yaml", tmp_path / "bad.yaml"]
    for file, playbook in zip(files, made, strict=True):
        # The weights of a local path say in config.json what they are; a repository says it by its name.
        file.write_text(
            playbook.replace("path: ~/vllm/gemma4-26b-a4b-nvfp4\n", "id: bg-digitalservices/Gemma-4-26B-A4B-it-NVFP4\n")
        )
    good, bad = ({finding.code for finding in lint([file]).findings if finding.severity != "info"} for file in files)
    if code is None:
        assert bad - good == set()
    else:
        assert code in bad - good


def test_fastsafetensors_on_ngc(tmp_path):
    text = (
        (DATA / "nemotron-3-super.sh")
        .read_text()
        .replace("vllm/vllm-openai:cu130-nightly", "nvcr.io/nvidia/vllm:26.04-py3")
    )
    file = tmp_path / "x.yaml"
    file.write_text(convert(text.replace("--trust-remote-code", "--load-format fastsafetensors"), "x.sh").text)
    assert ("SM121-043", "error") in {(finding.code, finding.severity) for finding in lint([file]).findings}


def test_vllm_serve_twice(tmp_path):
    """Imported, it is kept once; in a command it is a finding."""
    made = convert((DATA / "nemotron-3-super.sh").read_text(), "x.sh")
    assert any("kept once" in note for note in made.notes)
    file = tmp_path / "x.yaml"
    file.write_text(
        "name: x\nmodel: {id: a/b}\nimage: vllm/vllm-openai:nightly\ncommand: [vllm, serve, vllm, serve, a/b]\n"
    )
    assert ("SM121-120", "error") in {(finding.code, finding.severity) for finding in lint([file]).findings}


PIECES = st.sampled_from(
    ["docker", "run", "-e", "-v", "A=1", "a:b", "/:/x", "vllm/vllm-openai:nightly", "vllm", "serve", "org/m", "--seed",
     "1", "'", '"', "\\", "\n", "$A", "${A", "$(", "`", "#", "<<EOF", "EOF", "|", "&&", "bash", "-c", "'vllm serve a/b'",
     "--entrypoint", "{", "}", "--speculative-config", '{"a":1}', "recipe_version: 1", "\ncommand: vllm serve a/b",
     "\ncontainer: x", "\ndefaults:\n  a: 1", "{a}", "env:", "\x00", "é", "--model", "-tp", "python3 -m"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES | st.text(max_size=5), max_size=25).map(" ".join))
def test_whatever_it_is_the_answer_is_a_playbook_or_one_line(text):
    try:
        made = convert(text, "x")
    except UsageError:
        return
    assert made.document["model"]
