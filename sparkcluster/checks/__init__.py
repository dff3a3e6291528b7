"""Pure checks over spec, facts and topology that find what would make a launch fail.

Stages
------

A check is a pure function of the facts that it names. What it needs determines its stage; ``lint``, ``preflight``,
``up`` and ``doctor`` differ only in the stages that they run.

stage: needs; costs; run by.
- ``written``: the spec; nothing; ``lint`` and all below
- ``facts``: facts of every node, in one round trip; under a second; ``plan``, ``preflight``, ``up``, ``doctor``
- ``reach``: which nodes reach each other: each rail, large packets, the ports of the launch and ephemeral ones; a
  tenth of a second; one time-out where something is dropped; ``preflight``, ``up`` before it stages
- ``deep``: measured bandwidth, and the weights' SHA-256; minutes; ``preflight --deep``, ``--hash``
- ``running``: observations of a running cluster; seconds; ``doctor``

A fact that could not be read is a finding of its own and costs only the checks that need it; a check that crashes is
a finding; a node that does not answer is one finding, and the topology is made of the others (``Group.missing``),
which are examined and compared all the same. ``preflight`` without ``--deep`` leaves nothing on a node: even the
content of an image is cached in ``~/.cache/sparkcluster/images`` on the machine where it was typed, by node and image
ID. ``up`` runs the same checks before it stages or starts anything, and does none of it where the cluster serves
already.

Half of a preflight's time is Python's start and imports on this machine, the other half is the probe. So the probe is
sent (``facts/probe.py``) as soon as the inventory is known, and what reads the answers is imported while the nodes
work.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Mapping

from sparkcluster.checks.check import CATALOGUE, Context, Stage, load, run
from sparkcluster.facts.model import Facts
from sparkcluster.findings import Finding
from sparkcluster.spec import Spec
from sparkcluster.topology.model import EMPTY, Topology

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)  # it registers its checks


def run_checks(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> list[Finding]:
    """Findings of every check that needs only facts, errors first; ``allow`` and ``ignore`` lower severities.

    ``topology`` is ``EMPTY`` where none can be made: then each node is judged by itself.
    """
    return run_stage(Context(spec, facts, topology), ("written", "facts"))


def run_stage(context: Context, stages: Collection[Stage]) -> list[Finding]:
    """Findings of the checks of ``stages``, errors first."""
    name = context.spec.playbook.engine
    load(name)
    chosen = (check for check in CATALOGUE.values() if check.stage in stages and check.engine in {None, name})
    return run(context, chosen)


def check_written(spec: Spec) -> list[Finding]:
    """Findings about inventory and playbook, without contacting a node."""
    return run_stage(Context(spec, {}, EMPTY), ["written"])
