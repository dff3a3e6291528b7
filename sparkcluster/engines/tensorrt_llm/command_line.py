"""The command line of ``trtllm-serve``."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sparkcluster.engines.base import Rank
from sparkcluster.engines.words import program
from sparkcluster.errors import PlanError
from sparkcluster.facts.model import Facts
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import ArgumentValue
from sparkcluster.topology.model import Topology

MODEL = "/sparkcluster/model/"
"""The model's directory: a link in a container; in the command of a process the launcher replaces it."""


def serve(rank: Rank) -> list[str]:
    """Command that serves the playbook's model; a ``command`` in the playbook replaces it."""
    playbook, group = rank.playbook, rank.group
    if playbook.command is not None:
        return list(playbook.command)
    argv = [program("trtllm-serve", rank.python), MODEL, "--served_model_name", playbook.model_name]
    argv += ["--host", group.api_host, "--port", str(group.api_port)]
    return argv + [word for name, value in playbook.args.items() for word in option(name, value)]


def planned(spec: Spec, _facts: Mapping[str, Facts], _topology: Topology) -> Spec:
    """``spec`` as it is.

    Raises:
        PlanError: the model has several names in the API, and TensorRT-LLM supports one
            (https://github.com/NVIDIA/TensorRT-LLM/pull/12746 is open).
    """
    if spec.playbook.aliases:
        problem = f"TensorRT-LLM serves a model under one name, but {spec.playbook.name} has aliases"
        raise PlanError(problem, step="plan", hint="remove aliases from the playbook, or from its entry in models")
    return spec


def option(name: str, value: ArgumentValue) -> list[str]:
    """One option: true is the bare flag, false and null nothing, a mapping JSON, which YAML contains."""
    if value is None or value is False:
        return []
    flag = "--" + name.replace("-", "_")
    if value is True:
        return [flag]
    if isinstance(value, dict):
        return [flag, json.dumps(value, separators=(",", ":"), ensure_ascii=False)]
    return [word for each in (value if isinstance(value, list) else [value]) for word in (flag, str(each))]
