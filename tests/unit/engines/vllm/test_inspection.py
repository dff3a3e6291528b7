"""What is read out of an engine's own source: flags and parsers of the layouts that are in use."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import sparkcluster.lab.engine.stub
from sparkcluster.engines.vllm import node
from sparkcluster.facts.docker import EngineFacts
from sparkcluster.node import interpreter

SNIPPET = interpreter.snippet(node.INSPECTION)

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
            \"\"\"Arguments.\"\"\"
            chat_template: str | None = None
            enable_auto_tool_choice: bool = False
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
    "entrypoints/cli/serve.py": """
        class ServeSubcommand:
            def subparser_init(self, subparsers):
                serve_parser.add_argument("--grpc", action="store_true")
        """,
    "entrypoints/openai/tool_parsers/hermes_tool_parser.py": """
        @ToolParserManager.register_module("hermes")
        class HermesToolParser:
            pass
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
    """What the interpreter says where the packages below ``root`` come first."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", SNIPPET],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )
    return interpreter.parse(done.stdout)


def lay(root: Path, files: dict[str, str]) -> Path:
    """A package vllm below ``root``; to import it would fail."""
    for name, text in {"__init__.py": "raise SystemExit('imported')\n", **files}.items():
        path = root / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return root


def table_flags() -> set[str]:
    """Long names of the flags in the stub's table."""
    table = Path(sparkcluster.lab.engine.stub.__file__).parent / "site/stubengine/vllm-0.32-flags.tsv"
    lines = [line.split("\t")[0] for line in table.read_text().splitlines() if line.startswith("--")]
    return {name[2:] for line in lines for name in line.split(",") if name.startswith("--")}


def test_the_layout_of_vllm_0_32(tmp_path: Path) -> None:
    found = ask(lay(tmp_path, NEW))
    assert found["flags"] == [
        "chat-template", "device-memory-utilization", "enable-auto-tool-choice", "gpu-memory-utilization", "headless",
        "host", "max-model-len", "model", "port", "tensor-parallel-size",
    ]  # fmt: skip
    assert found["tool_parsers"] == ["hermes", "qwen3_coder"]
    assert found["reasoning_parsers"] == ["qwen3"]
    EngineFacts.model_validate(found)


def test_the_layout_of_vllm_0_11(tmp_path: Path) -> None:
    found = ask(lay(tmp_path, OLD))
    assert found["flags"] == [
        "grpc", "guided-decoding-backend", "host", "max-model-len", "port", "tensor-parallel-size",
    ]  # fmt: skip
    assert found["tool_parsers"] == ["hermes", "llama3_json", "llama4_json", "mistral"]
    assert found["reasoning_parsers"] == ["deepseek_r1"]


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"engine/arg_utils.py": NEW["engine/arg_utils.py"]},
        {**NEW, "engine/arg_utils.py": "def add_cli_args(:"},
        {**NEW, "engine/arg_utils.py": "def add_cli_args(parser):\n    for each in TABLE: parser.add_argument(each)\n"},
    ],
    ids=["nothing", "half", "no Python", "a layout to come"],
)
def test_flags_that_cannot_be_read_are_unknown_rather_than_none_at_all(tmp_path: Path, files: dict[str, str]) -> None:
    assert ask(lay(tmp_path, files))["flags"] is None


def test_without_vllm_nothing_is_said_of_it(tmp_path: Path) -> None:
    found = ask(tmp_path)
    assert (found["version"], found["flags"], found["tool_parsers"]) == (None, None, None)


def test_a_compiler_in_the_image_is_told(tmp_path: Path) -> None:
    assert ask(tmp_path, PATH=str(tmp_path))["compiler"] is False
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    assert ask(tmp_path, PATH=str(tmp_path))["compiler"] is True


def test_versions_of_torch_and_nccl_are_told_without_importing_torch(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "torch/version.py").write_text("__all__ = []\n__version__: str = '2.10.0a0+b558c986e8.nv26.1'\n")
    found = ask(tmp_path, NCCL_VERSION="2.29.2-1")
    assert found["torch_version"] == "2.10.0a0+b558c986e8.nv26.1"
    wheel = tmp_path / "nvidia_nccl_cu13-2.28.9.dist-info"
    wheel.mkdir()
    (wheel / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-nccl-cu13\nVersion: 2.28.9\n")
    assert ask(tmp_path, NCCL_VERSION="2.29.2-1")["nccl_version"] == "2.28.9"


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here")
def test_what_is_read_of_vllm_is_what_its_own_parser_takes() -> None:
    """The list was made by vLLM 0.32's own parser; reading its source finds the same."""
    done = subprocess.run([sys.executable, "-I", "-c", SNIPPET], capture_output=True, text=True, check=True)
    found = interpreter.parse(done.stdout)
    if not str(found["version"]).startswith("0.32."):
        pytest.skip(f"vLLM {found['version']} is installed, and the list is of 0.32")
    assert set(found["flags"]) == table_flags()
    assert {"hermes", "qwen3_coder", "openai"} <= set(found["tool_parsers"])
    assert {"qwen3", "deepseek_r1"} <= set(found["reasoning_parsers"])


def test_the_stub_takes_for_its_flags_what_its_table_has(tmp_path: Path) -> None:
    """Its image is asked like any other, so a playbook's flags are checked in the lab too."""
    shutil.copytree(sparkcluster.lab.engine.stub.SITE, tmp_path, dirs_exist_ok=True)
    for name, text in sparkcluster.lab.engine.stub.sources().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = ask(tmp_path)
    assert set(found["flags"]) == table_flags()
    assert {"hermes", "qwen3_coder", "openai"} <= set(found["tool_parsers"])
    assert {"qwen3", "deepseek_r1"} <= set(found["reasoning_parsers"])
    assert found["version"].startswith("0.32.")
