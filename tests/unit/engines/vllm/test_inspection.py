"""Flags and parsers read from an engine's source, for the layouts in use."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.engines.vllm import node
from sparkcluster.facts.docker import EngineFacts
from sparkcluster.node import engine, interpreter

SNIPPET = interpreter.SNIPPET.replace(engine.INSPECTION, node.INSPECTION)

# vLLM 0.32 in small: the front end's dataclass in entrypoints/launchers, lazily registered parsers.
NEW = {
    "engine/arg_utils.py": """
        import nothing_that_is_installed
        class EngineArgs:
            @staticmethod
            def add_cli_args(parser):
                group = parser.add_argument_group(title="ModelConfig")
                if not ("serve" in sys.argv[1:] and "--help" in sys.argv[1:]):
                    group.add_argument("--model", **kwargs["model"])
                group.add_argument("--max-model-len", **kwargs["max_model_len"])
                group.add_argument(
                    "--tensor-parallel-size", "-tp", **kwargs["tensor_parallel_size"]
                )
                group.add_argument(
                    "--gpu-memory-utilization", "--device-memory-utilization", help="see --model for more"
                )
                return parser
        def of_another_command(parser):
            parser.add_argument("--not-of-serve")
        """,
    "entrypoints/launchers/cli_args.py": """
        @config
        class BaseFrontendArgs:
            chat_template: str | None = None
            @classmethod
            def add_cli_args(cls, parser):
                for key, value in kwargs.items():
                    group.add_argument(*extra_flags, f"--{key.replace('_', '-')}", **value)
        @config
        class FrontendArgs(BaseFrontendArgs):
            host: str | None = None
            port: int = 8000
        def make_arg_parser(parser):
            parser.add_argument("model_tag", nargs="?")
            parser.add_argument("--headless", action="store_true")
        """,
    "tool_parsers/__init__.py": """
        \"\"\"ToolParserManager.register_lazy_module(name="only_an_example")\"\"\"
        _TOOL_PARSERS_TO_REGISTER = {
            "hermes": ("hermes_tool_parser", "HermesToolParser"),
            "qwen3_coder": ("qwen3coder_tool_parser", "Qwen3CoderToolParser"),
        }
        """,
    "reasoning/__init__.py": """
        _REASONING_PARSERS_TO_REGISTER: dict = {"qwen3": ("qwen3_reasoning_parser", "Qwen3ReasoningParser")}
        """,
}

# vLLM 0.11 in small: entrypoints/openai, deprecated names in a loop, parsers registered by decorators.
OLD = {
    "engine/arg_utils.py": """
        class EngineArgs:
            def add_cli_args(parser):
                group.add_argument("--max-model-len", **kwargs)
                group.add_argument("--tensor-parallel-size", "-tp", **kwargs)
                deprecated = {"--guided-decoding-backend": str}
                for arg, kind in deprecated.items():
                    group.add_argument(arg, type=kind)
        """,
    "entrypoints/openai/cli_args.py": """
        class FrontendArgs:
            host: Optional[str] = None
            port: int = 8000
        """,
    "entrypoints/openai/tool_parsers/two.py": """
        @ToolParserManager.register_module(["llama3_json", "llama4_json"])
        class Llama: ...
        @ToolParserManager.register_module(name="mistral", force=True)
        class Mistral: ...
        """,
    "entrypoints/openai/tool_parsers/abstract_tool_parser.py": """
        class ToolParserManager:
            def register_module(self):
                \"\"\"@ToolParserManager.register_module("only_an_example")\"\"\"
        """,
    "reasoning/deepseek.py": """
        @ReasoningParserManager.register_module("deepseek_r1")
        class DeepSeekR1: ...
        """,
}


def ask(root: Path, **environment: str) -> dict[str, Any]:
    """Output of the interpreter with the packages below ``root`` first."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", SNIPPET],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )
    return interpreter.parse(done.stdout)


def lay(root: Path, files: dict[str, str]) -> Path:
    """A package vllm below ``root`` that fails when imported."""
    for name, text in {"__init__.py": "raise SystemExit('imported')\n", **files}.items():
        path = root / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return root


def test_the_layout_of_vllm_0_32(tmp_path: Path) -> None:
    found = ask(lay(tmp_path, NEW))
    assert found["flags"] == [
        "chat-template", "device-memory-utilization", "gpu-memory-utilization", "headless", "host", "max-model-len",
        "model", "port", "tensor-parallel-size",
    ]  # fmt: skip
    assert found["tool_parsers"] == ["hermes", "qwen3_coder"]
    assert found["reasoning_parsers"] == ["qwen3"]
    EngineFacts.model_validate(found)


def test_the_layout_of_vllm_0_11(tmp_path: Path) -> None:
    found = ask(lay(tmp_path, OLD))
    assert found["flags"] == ["guided-decoding-backend", "host", "max-model-len", "port", "tensor-parallel-size"]
    assert found["tool_parsers"] == ["llama3_json", "llama4_json", "mistral"]
    assert found["reasoning_parsers"] == ["deepseek_r1"]


@pytest.mark.parametrize(
    "files",
    [
        {"engine/arg_utils.py": NEW["engine/arg_utils.py"]},
        {**NEW, "engine/arg_utils.py": "def add_cli_args(parser):\n    for each in TABLE: parser.add_argument(each)\n"},
    ],
    ids=["partial", "future layout"],
)
def test_unreadable_flags_are_unknown_and_not_empty(tmp_path: Path, files: dict[str, str]) -> None:
    assert ask(lay(tmp_path, files))["flags"] is None


def test_a_compiler_in_the_image_is_reported(tmp_path: Path) -> None:
    assert ask(tmp_path, PATH=str(tmp_path))["compiler"] is False
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    assert ask(tmp_path, PATH=str(tmp_path))["compiler"] is True
