"""A stand-in for vLLM and Ray, for labs and fault tests; see docs/lab-stub.md.

``BIN`` goes on PATH and ``SITE`` on PYTHONPATH. Nothing here imports sparkcluster, nor the other way round.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = HERE / "bin"
SITE = HERE / "site"
_TABLES = SITE / "stubengine"


def sources() -> dict[str, str]:
    """Source files of vLLM that are read and never run, from the stub's tables; by path below ``SITE``."""
    flags = (name for row in _rows("flags") for name in row[0].split(",") if name.startswith("--"))
    builder = ["def add_cli_args(parser):", *(f"parser.add_argument({name!r})" for name in flags)]
    found = {"vllm/engine/arg_utils.py": "\n    ".join(builder) + "\n"}
    for kind, place in (("reasoning", "reasoning"), ("tool", "tool_parsers")):
        names = {name: () for parser, name in _rows("parsers") if parser == kind}
        found[f"vllm/{place}/__init__.py"] = f"_{kind.upper()}_PARSERS_TO_REGISTER = {names!r}\n"
    return found


def _rows(table: str) -> list[list[str]]:
    lines = (_TABLES / f"vllm-0.32-{table}.tsv").read_text().splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]
