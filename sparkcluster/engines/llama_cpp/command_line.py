"""The command line of ``llama-server``."""

from __future__ import annotations

import json

from sparkcluster.engines.base import Rank
from sparkcluster.engines.llama_cpp.flags import ON_OR_OFF, WITHOUT_NEGATION
from sparkcluster.engines.words import program
from sparkcluster.spec.playbook import ArgumentValue

MODEL = "/sparkcluster/model"
"""The model's directory: a link in a container; in the command of a process the launcher replaces it."""


def serve(rank: Rank) -> list[str]:
    """Command that serves the playbook's file; a ``command`` in the playbook replaces it."""
    playbook, group = rank.playbook, rank.group
    if playbook.command is not None:
        return list(playbook.command)
    argv = [program("llama-server", rank.python), "--model", f"{MODEL}/{playbook.model.file}"]
    argv += ["--alias", ",".join([playbook.model_name, *playbook.aliases])]
    argv += ["--host", group.api_host, "--port", str(group.api_port), "--metrics", "--offline"]
    return argv + [word for name, value in playbook.args.items() for word in flag(name.replace("_", "-"), value)]


def flag(name: str, value: ArgumentValue) -> list[str]:
    """One argument: true is the bare flag, false its negation or nothing, null nothing, a mapping JSON.

    Lists are joined with commas, samplers with semicolons.
    """
    if value is None or (value is False and name in WITHOUT_NEGATION):
        return []
    if isinstance(value, bool):
        if name in ON_OR_OFF:
            return [f"--{name}", "on" if value else "off"]
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value, separators=(",", ":"), ensure_ascii=False)]
    between = ";" if name == "samplers" else ","
    return [f"--{name}", between.join(map(str, value)) if isinstance(value, list) else str(value)]
