"""A rank without a container: the launcher as a process of the node's user."""

from __future__ import annotations

from sparkcluster.node.shared import ENTRY_FILE, LAUNCHER_FILE


def run(*, python: str, rank_dir: str) -> list[str]:
    """Command that starts one rank with the Python that has the engine."""
    return [python, f"{rank_dir}/{ENTRY_FILE}", f"{rank_dir}/{LAUNCHER_FILE}"]
