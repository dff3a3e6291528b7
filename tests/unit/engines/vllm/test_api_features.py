"""API features for clients come from the playbook only."""

from __future__ import annotations

import pytest

from sparkcluster import engines
from sparkcluster.spec.playbook import Playbook

QWEN, LLAMA = "Qwen/Qwen3.6-35B-A3B-FP8", "acme/unheard-of-7b"
TOOLS = {"enable-auto-tool-choice": True, "tool-call-parser": "qwen3_xml"}


def features(model=QWEN, image="vllm/vllm-openai:v0.28.0", **args):
    written = {"name": "p", "model": {"id": model}, "image": image, "args": args}
    return engines.engine("vllm").api_features(Playbook.model_validate(written))


@pytest.mark.parametrize(
    ("model", "args", "expected"),
    [
        (QWEN, {**TOOLS, "reasoning-parser": "qwen3", "max-model-len": "64k"}, (64_000, True, True)),
        (QWEN, {}, (262_144, False, False)),
        (QWEN, {"max-model-len": "auto"}, (None, False, False)),
        ("Qwen/Qwen3-Coder-30B", {}, (262_144, False, None)),
        (LLAMA, {**TOOLS, "reasoning_parser": "x"}, (None, True, True)),
    ],
)
def test_context_tools_and_reasoning_come_from_the_arguments(model, args, expected):
    found = features(model, **args)
    assert (found.context, found.tools, found.reasoning) == expected


@pytest.mark.parametrize(
    ("image", "messages"),
    [
        ("vllm/vllm-openai:v0.11.1", True),
        ("vllm/vllm-openai:v0.11.0", False),
        ("sparkarena/spark-vllm-docker:mxfp4", None),
    ],
)
def test_the_messages_api_exists_since_0_11_1(image, messages):
    assert features(image=image).messages is messages


@pytest.mark.parametrize(
    ("model", "args", "tools", "reasoning"),
    [
        (QWEN, {}, "enable-auto-tool-choice: true and tool-call-parser: qwen3_xml", "reasoning-parser: qwen3"),
        (QWEN, {**TOOLS, "tool-call-parser": "hermes"}, "is hermes: it has to fit the model, usually qwen3_xml", ""),
        (QWEN, {**TOOLS, "reasoning-parser": "qwen3"}, "is qwen3_xml: it has to fit the model (", "is qwen3: it has"),
    ],
)
def test_a_remedy_names_the_parser_of_the_model(model, args, tools, reasoning):
    remedies = features(model, **args).remedies
    assert tools in remedies["tools"]
    assert reasoning in remedies["reasoning"]
