"""How long vLLM lets requests that are in flight finish when it is stopped: --shutdown-timeout.

It came with https://github.com/vllm-project/vllm/pull/36666, and is in 0.19; by default requests in flight are aborted.
From SIGTERM on a new request ends at once, with finish_reason abort and no text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from sparkcluster.engines.vllm import flags, utilization
from sparkcluster.engines.vllm.arguments import Arguments
from sparkcluster.engines.vllm.reported import of_engine
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts
from sparkcluster.spec import Playbook, Spec
from sparkcluster.topology.model import Topology

ARGUMENT = "shutdown-timeout"
DRAIN_S = 60
"""Guides set 30 s where an answer takes 24 s and 300 s where it takes 260 s (https://github.com/llm-d/llm-d/pull/1653).

A Spark decodes 10 to 50 tokens/s for one request, so that 60 s are the rest of an answer of 600 to 3000 tokens.
"""


def planned(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> Spec:
    """``spec`` with all arguments that are computed from the facts; those that its playbook has stay.

    Raises:
        PlanError: as ``utilization.planned``.
    """
    spec = utilization.planned(spec, facts, topology)
    nodes = [facts[name] for group in topology.groups for name in group.names if name in facts]
    if spec.playbook.command is not None or not own_arguments(spec.playbook) or not _has_argument(spec.playbook, nodes):
        return spec
    args = {**spec.playbook.args, ARGUMENT: DRAIN_S}
    return dataclasses.replace(spec, playbook=spec.playbook.model_copy(update={"args": args}))


def own_arguments(playbook: Playbook) -> frozenset[str]:
    """Flags that are added to the command line where the playbook does not set them."""
    return frozenset() if ARGUMENT in Arguments(playbook).values else frozenset({f"--{ARGUMENT}"})


def seconds(playbook: Playbook) -> int:
    """Seconds that requests in flight get, by the arguments of a planned playbook."""
    return max(0, int(Arguments(playbook).number(ARGUMENT) or 0))


def _has_argument(playbook: Playbook, nodes: list[Facts]) -> bool:
    """Whether every node's vLLM has the flag: by what each says that it takes, else by its version."""
    found = [engine.flags for node in nodes if (engine := engine_of(node)) is not None and engine.flags is not None]
    if found:
        return all(ARGUMENT in each for each in found)
    flag = flags.find(ARGUMENT)
    return flag is not None and flags.has(flag, of_engine(playbook.image, nodes)) is True
