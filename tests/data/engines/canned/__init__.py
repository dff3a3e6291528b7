"""An engine for tests: it answers every request with the same text, using only the standard library."""

from __future__ import annotations

from pathlib import Path

from sparkcluster.engines.base import Engine, Rank


class Canned(Engine):
    """Serves on one node; its API key is read and not required."""

    name = "canned"
    title = "Canned"
    api_key = "CANNED_KEY"
    api_flags = {"host": "--listen", "port": "--at", "model": "--as"}
    counters = {"generated": ("canned_tokens",), "running": ("canned_running",), "waiting": ("canned_waiting",)}
    ready = "canned is ready"

    def serve(self, rank: Rank) -> list[str]:
        """A Python program, passed in the command line."""
        source = Path(__file__).with_name("server.py").read_text()
        where = ["--listen", rank.group.api_host, "--at", str(rank.group.api_port)]
        return ["python3", "-u", "-c", source, *where, "--as", rank.playbook.model_name]


ENGINE = Canned()
