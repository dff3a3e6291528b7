"""Pure checks of spec, facts and topology that find problems before a launch.

Stages
------

A check is a pure function of the facts that it names. Its stage is the most expensive input that it needs; ``lint``,
``preflight``, ``up`` and ``doctor`` differ only in the stages that they run.

stage: needs; costs; run by.

- ``written``: the spec; nothing; ``lint`` and all below
- ``facts``: facts of every node, in one round trip; under a second; ``plan``, ``preflight``, ``up``, ``doctor``
- ``reach``: connections between nodes: each rail, large packets, launch ports and ephemeral ports; a tenth of a second,
  or one time-out if packets are dropped; ``preflight``, ``up`` before it stages
- ``deep``: measured bandwidth, and the weights' SHA-256; minutes; ``preflight --deep``, ``--hash``
- ``running``: observations of a running cluster; seconds; ``doctor``

A fact that could not be read is a finding and skips only the checks that need it. A check that crashes is a finding. A
node that does not answer is one finding; the other nodes form the topology (``Group.missing``) and are still checked.
``preflight`` without ``--deep`` leaves nothing on a node; the content of images is cached locally in
``~/.cache/sparkcluster/images``, by node and image ID. ``up`` runs the same checks before it stages or starts anything,
and none if the cluster already serves.

Half of preflight's time is Python start-up and imports, half is the probe. The probe is therefore sent
(``facts/probe.py``) as soon as the inventory is read, and modules that read the answers are imported meanwhile.
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
    importlib.import_module(_module.name)  # registers its checks


def run_checks(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> list[Finding]:
    """Findings of all checks that need only spec and facts, errors first; ``allow`` and ``ignore`` lower severities.

    With the topology ``EMPTY``, each node is checked individually.
    """
    return run_stage(Context(spec, facts, topology), ("written", "facts"))


def run_stage(context: Context, stages: Collection[Stage]) -> list[Finding]:
    """Findings of the checks of ``stages``, errors first."""
    name = context.spec.playbook.engine
    load(name)
    chosen = (check for check in CATALOGUE.values() if check.stage in stages and check.engine in {None, name})
    return run(context, chosen)


def check_written(spec: Spec) -> list[Finding]:
    """Findings of the checks that contact no node."""
    return run_stage(Context(spec, {}, EMPTY), ["written"])
