"""NCCL in the serving image: an all-gather over a whole group. Pure.

Each rank is a container; this module builds its command and parses its output.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping

from sparkcluster.facts.base import Fact, Measure
from sparkcluster.facts.docker import Image
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts
from sparkcluster.hosts.program import source
from sparkcluster.node.shared import LABEL_MEASURE
from sparkcluster.plan import docker_run, environment
from sparkcluster.plan.image import keeps_entrypoint
from sparkcluster.spec import Spec
from sparkcluster.topology.model import Group, Member, Topology

SIZE_BYTES = 256 << 20  # gathered; a buffer of 16 GB has frozen a node, whose GPU shares its memory
LIMIT_S = 90
_MARK = "sparkcluster-all-gather "
# All NCCL versions in use log the first line; versions that end early log only the second.
_NETWORK = (re.compile(r"Using network (\w+)"), re.compile(r"NET/(IB|Socket) ?: Using"))


@dataclasses.dataclass(frozen=True, slots=True)
class AllGather:
    """The result of one rank: bus bandwidth in 10^9 bytes per second, or why there is none.

    ``over`` is ``NCCL over IB``, ``NCCL over Socket`` or ``Gloo over TCP``.
    """

    bus_gb_s: float | None
    over: str
    seen: str = ""


class _Printed(Fact):
    """The line that a rank prints: its measurement, or why it failed."""

    bus_gb_s: Measure | None = None
    backend: str = ""
    failed: str | None = None


def why_not(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> str | None:
    """What prevents starting a container on the nodes, or None."""
    names = [member.name for group in topology.groups if len(group.members) > 1 for member in group.members]
    if spec.inventory.runtime.kind != "docker":
        return "runtime process has no image to measure with"
    for name in names:
        ranks = facts[name].ranks
        if not isinstance(ranks, tuple):
            return f"the ranks on {name} are unknown"
        if any(rank.state == "running" for rank in ranks):
            return f"a rank is using the GPU of {name}"
        if not isinstance(facts[name].image, Image):
            return f"{name} has no image {spec.reference}"
    return None


def name(cluster: str, node: str) -> str:
    """Name of the container on a node, by which the next run finds and removes it."""
    return docker_run.valid_name(f"sparkcluster-measure-{cluster}-{node}")


def command(spec: Spec, facts: Facts, group: Group, member: Member) -> list[str]:
    """Command that runs one rank of the all-gather.

    Environment, network and devices are the same as for the rank that ``up`` would start, so that NCCL makes the same
    choices; NCCL also logs them. The container stops after ``LIMIT_S``.
    """
    image, engine = facts.image, engine_of(facts)
    if not isinstance(image, Image):
        raise TypeError(f"{member.name} has no image")
    env = environment.build(spec, group, member, hf_home=docker_run.HF_HOME, baked=image.env_names)
    env |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
    argv = docker_run.run(
        name=name(spec.inventory.cluster, member.name),
        image=image.id,
        keeps_entrypoint=keeps_entrypoint(image),
        python=engine.python if engine is not None else "python3",
        env=env,
        env_file=None,
        labels={LABEL_MEASURE: spec.inventory.cluster},
        mounts=(),
        infiniband=facts.infiniband_devices,
        container=spec.playbook.container,
    )
    # Attached, and removed at its end; a program that is sent along replaces the launcher.
    argv[argv.index("--detach")] = "--rm"
    asked = {"rank": member.rank, "world": len(group.members), "address": group.head.address, "bytes": SIZE_BYTES}
    asked |= {"port": group.master_port, "limit_s": LIMIT_S, "mark": _MARK}
    return [*argv[:-2], "-c", source("all_gather"), json.dumps(asked)]


def read(output: str, exit_code: int) -> AllGather:
    """Parse a rank's output."""
    network = next((found[1] for pattern in _NETWORK if (found := pattern.search(output)) is not None), None)
    marked = next((line for line in output.splitlines() if line.startswith(_MARK)), None)
    try:
        printed = _Printed.model_validate_json(marked.removeprefix(_MARK)) if marked else _Printed()
    except ValueError:
        printed = _Printed()
    if printed.bus_gb_s is not None:
        over = "Gloo over TCP" if printed.backend == "gloo" else f"NCCL over {network or 'an unknown network'}"
        return AllGather(printed.bus_gb_s, over)
    last = [line.strip() for line in output.splitlines() if line.strip()]
    ended = f"exit code {exit_code}: {last[-1] if last else 'no output'}"
    over = f"NCCL over {network}" if network else "NCCL"
    return AllGather(None, over, printed.failed or ended)
