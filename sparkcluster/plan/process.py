"""A rank without a container: the launcher as a process of the node's user."""

from __future__ import annotations

from pathlib import PurePosixPath

from sparkcluster.node.shared import ENTRY_FILE, LAUNCHER_FILE


def run(*, python: str, rank_dir: str) -> list[str]:
    """Command that starts one rank with the Python that has the engine."""
    return [python, f"{rank_dir}/{ENTRY_FILE}", f"{rank_dir}/{LAUNCHER_FILE}"]


def vllm(python: str) -> list[str]:
    """How vLLM is called: the script beside its Python, which need not be on PATH."""
    directory = PurePosixPath(python).parent
    return [str(directory / "vllm")] if directory.is_absolute() else ["vllm"]
