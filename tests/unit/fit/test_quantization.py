"""Which modules a checkpoint quantizes, and to how many bits; test_fit has the resulting sizes."""

from __future__ import annotations

import pytest

from sparkcluster.errors import UsageError
from sparkcluster.fit.config import parse
from sparkcluster.fit.quantization import PLAIN
from sparkcluster.fit.weights import of_config
from tests.unit.fit.llama import LLAMA_8B

Q, GATE, HEAD = "layers.0.self_attn.q_proj", "layers.0.mlp.gate", "lm_head"
EXPERT, SHARED = "layers.3.mlp.experts.0.up_proj", "layers.3.mlp.shared_experts.up_proj"


def bits(name, **quantization):
    return parse({**LLAMA_8B, "quantization_config": quantization}, "x").quantization.rules().bits(name)


@pytest.mark.parametrize(
    ("written", "name", "expected"),
    [
        ({"quant_method": "fp8"}, Q, 8),
        ({"quant_method": "fp8"}, HEAD, PLAIN),
        ({"quant_method": "fp8"}, GATE, PLAIN),
        ({"quant_method": "fp8", "modules_to_not_convert": ["self_attn"]}, Q, PLAIN),
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0"]}, Q, PLAIN),
        ({"quant_method": "fp8", "modules_to_not_convert": ["q"]}, Q, 8),
        ({"quant_method": "mxfp4"}, EXPERT, 4.25),
        ({"quant_method": "mxfp4"}, Q, PLAIN),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, Q, 4 + 20 / 128),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*.self_attn*"]}, Q, PLAIN),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}, Q, 4.5),
        ({"quant_method": "auto-round", "extra_config": {"model.layers.0.self_attn.q_proj": {"bits": 8}}}, Q, 8.1875),
        ({"quant_method": "something_new"}, Q, None),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, Q, None),
    ],
)
def test_a_module_has_the_bits_in_its_config(written, name, expected):
    assert bits(name, **written) == expected


def test_a_mixed_checkpoint_names_the_algorithm_of_each_module():
    layers = {"backbone.layers.3.mlp.experts": {"quant_algo": "NVFP4"}, "lm_head": {"quant_algo": "FP8"}}
    layers |= {"*.shared_experts.*": {"quant_algo": "FP99"}}
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    assert [bits(name, **mixed) for name in (EXPERT, HEAD, Q, SHARED)] == [4.5, 8, PLAIN, None]


def test_groups_of_compressed_tensors_name_layers_or_take_all():
    four = {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}
    eight = {"weights": {"num_bits": 8, "type": "float"}, "targets": ["re:.*self_attn.*"]}
    written = {
        "quant_method": "compressed-tensors",
        "config_groups": {"a": {**four, "targets": ["Linear"]}, "b": eight},
    }
    assert [bits(name, **written, ignore=["re:.*shared_experts.*"]) for name in (EXPERT, Q, SHARED)] == [4.5, 8, PLAIN]


@pytest.mark.parametrize(
    "pattern",
    ["re:(a+)+$", "re:(a|aa)*b", "re:.*.*.*.*.*.*x", "re:[", "re:" + "a" * 300, "*a*a*a*a*", "*" + "a" * 300],
)
def test_an_exponential_pattern_is_refused(pattern):
    config = parse({**LLAMA_8B, "quantization_config": {"quant_method": "fp8", "ignore": [pattern]}}, "x")
    with pytest.raises(UsageError, match=r"quantization_config\.ignore has an (unsupported|invalid) pattern"):
        of_config(config)


def test_an_unknown_size_is_not_assumed_to_be_sixteen_bits():
    config = parse({**LLAMA_8B, "quantization_config": {"quant_method": "exl3"}}, "some/model")
    with pytest.raises(
        UsageError, match=r"the size of the weights of some/model is unknown: .* how exl3 stores layers\.0"
    ) as caught:
        of_config(config)
    assert "--config" in (caught.value.hint or "")
