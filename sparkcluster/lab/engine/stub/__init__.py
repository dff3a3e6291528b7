"""An imitation of vLLM, Ray, SGLang and TensorRT-LLM, for labs and fault tests; see docs/internals/lab-stub.md.

``BIN`` goes on PATH and ``SITE`` on PYTHONPATH. Modules below ``SITE`` do not import sparkcluster, and it does not
import them.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = HERE / "bin"
SITE = HERE / "site"
_TABLES = SITE / "stubengine"


def sources() -> dict[str, str]:
    """Engine source files that are read and never run, generated from the stub's tables; by path below ``SITE``."""
    found = {"vllm/engine/arg_utils.py": _builder("vllm-0.32"), "sglang/srt/server_args.py": _builder("sglang-0.5.23")}
    for kind, place in (("reasoning", "reasoning"), ("tool", "tool_parsers")):
        names = {name: () for parser, name in _rows("vllm-0.32-parsers") if parser == kind}
        found[f"vllm/{place}/__init__.py"] = f"_{kind.upper()}_PARSERS_TO_REGISTER = {names!r}\n"
    return found


def _builder(release: str) -> str:
    flags = (name for row in _rows(f"{release}-flags") for name in row[0].split(",") if name.startswith("--"))
    return "\n    ".join(["def add_cli_args(parser):", *(f'parser.add_argument("{name}")' for name in flags)]) + "\n"


def _rows(table: str) -> list[list[str]]:
    lines = (_TABLES / f"{table}.tsv").read_text().splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]
