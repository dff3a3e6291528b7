"""The gateway of an inventory: brings it up to date with the current models.

It is one container (one process with runtime ``process``), labelled as a rank of its own cluster and recorded in no
release: its config.json has all its settings. If models are loaded on demand, its node also runs the door, which is
the guard of that cluster.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sparkcluster.errors import LaunchError, NotServing
from sparkcluster.facts.model import Facts
from sparkcluster.fit.budget import room
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.program import call, standalone
from sparkcluster.inspect import gateway as seen
from sparkcluster.inspect.budget import budget
from sparkcluster.inspect.cluster import see
from sparkcluster.inspect.connect import as_recorded
from sparkcluster.node.shared import CONFIG_FILE, LABEL_PLAN
from sparkcluster.plan.gateway import PROGRAM_FILE, config, rank
from sparkcluster.plan.model import ContainerPlan
from sparkcluster.printable import one_line, shell
from sparkcluster.release.enabled import require_running
from sparkcluster.release.stopping import remove_gateway
from sparkcluster.report import Report
from sparkcluster.runtime import secrets, stop_steps
from sparkcluster.runtime.change import Step
from sparkcluster.runtime.lease import RETRY_S, Lease
from sparkcluster.runtime.ranks import start_step
from sparkcluster.spec import Spec
from sparkcluster.topology.build import gateway as listens

READY_S = 60.0
"""How long it may take to answer and to reach the running models: a container starts in seconds, and engines are asked
every 5 s."""
_CHANGE_S = 120.0


def ensure(fleet: Fleet, specs: Sequence[Spec], names: Collection[str], report: Report) -> str:
    """Give the gateway the current records of the models ``specs``, and start it unless it runs; returns its URL.

    Returns once it answers and reaches the always-on models in ``names``.

    Raises:
        UsageError: its image cannot run it, or a key is missing on this machine.
        LaunchError: its port is in use, it does not answer, it does not reach a model, or its door does not run.
        LeaseHeld: another operator changes it.
        SparkclusterError: its node cannot be queried or changed.
    """
    spec = seen.of_inventory(specs)
    node = spec.gateway_node
    report.step("gateway", f"on {node}")
    view = see(fleet, spec, also=specs)
    facts, recorded = seen.with_packages(fleet, view, specs), seen.recorded(view, specs)
    for error in view.collected.errors.values():
        report.note(f"warning: models on {error.node} are skipped until the next up: {error.message}")
    program = standalone("program", package="gateway")
    planned = rank(spec, facts, program)
    (container,) = planned.containers
    ours, hash_ = view.ranks.ours, container.labels[LABEL_PLAN]
    steps: list[Step] = [{"do": "mkdir", "path": path} for path in container.directories]
    steps += [_put(container, PROGRAM_FILE, program, 0o644)]
    steps += [_put(container, CONFIG_FILE, json.dumps(_config(spec, specs, facts, recorded)), 0o600)]
    if not any(each.state == "running" and each.labels.get(LABEL_PLAN) == hash_ for each in ours[node]):
        steps = [*stop_steps(ours[node]), *steps, start_step(planned, container)]
    door = _door(fleet, spec, specs, facts, recorded)
    remove_gateway(fleet, view, report, but=node)
    with Lease(fleet, spec.inventory, "up").acquire([node]) as lease:
        *_, installed = lease.changer.apply({node: [*steps, door]}, timeout_s=_CHANGE_S)[node]
    if door["do"] == "enable":
        require_running(fleet, spec, {node: installed})
    log, path = shell("docker logs --tail 20", container.name), f"{container.rank_dir}/log"
    hint = f"sparkcluster status INVENTORY; on {node}: {log if container.image else shell('tail', path)}"
    always, until = [each.model for each in specs if each.idle_s is None and each.model in names], time.monotonic()
    while wrong := _wrong(fleet, spec, always):
        if time.monotonic() > until + READY_S:
            raise LaunchError(wrong, node=node, step="gateway", hint=hint)
        time.sleep(RETRY_S)
    report.done()
    return listens(spec, facts)[1]


def _put(container: ContainerPlan, name: str, content: str, mode: int) -> Step:
    return {"do": "put", "path": f"{container.rank_dir}/{name}", "content": content, "mode": mode}


def _config(spec: Spec, specs: Sequence[Spec], facts: Facts, recorded: Mapping[str, seen.Groups]) -> dict[str, Any]:
    """The content of config.json; engines are asked by the model names of the running playbook."""
    groups = {name: group for name, found in recorded.items() for group in found.values()}
    served = [as_recorded(each, groups.get(each.model)) or each for each in specs]
    measured = {name: {**group.measured, "nodes": len(group.ranks)} for name, group in groups.items()}
    found = budget(served, measured=measured)
    most, sizes = room(found.machine), dict[str, dict[str, int | None]]()
    for node, parts in found.sparks.items():
        for part in parts:
            # A model that is calculated as larger than a Spark but serves has an unknown size.
            sizes.setdefault(part.model, {})[node] = part.bytes if 0 < part.bytes <= most else None
    key = secrets.api_key(spec) if spec.inventory.api.key is not None else None
    return config(spec, served, facts, recorded, sizes=sizes, room=most, key=key, keys=secrets.accepted_keys(spec))


def _door(fleet: Fleet, spec: Spec, specs: Sequence[Spec], facts: Facts, recorded: Mapping[str, seen.Groups]) -> Step:
    """The step that installs the door, which forwards the gateway's requests to the guards of on-demand models.

    If no such model is enabled, the step that removes it.
    """
    places, cluster = {}, spec.inventory.cluster
    for each in specs:
        for group in recorded[each.model].values() if each.idle_s is not None else ():
            request = {"state_dir": each.inventory.state_dir, "cluster": each.inventory.cluster}
            if place := call(fleet[str(group.head)], "door_place", request, answer=dict[str, Any]):
                places[each.model] = place
    if not places:
        return {"do": "disable"}
    socket = f"{facts.state_dir}/clusters/{cluster}/run/door.sock"
    common = {"cluster": cluster, "node": spec.gateway_node, "state_dir": facts.state_dir, "socket": socket}
    return {"do": "enable", "program": standalone("door"), "config": {**common, "models": places}}


def _wrong(fleet: Fleet, spec: Spec, names: Collection[str]) -> str | None:
    """Why the gateway does not serve all of ``names``; None if it does."""
    try:
        models = seen.ask(fleet, spec)["models"]
    except NotServing as error:
        return error.message
    for name in names:
        if (known := models.get(name, {})).get("state") != "ready":
            return one_line(f"the gateway on {spec.gateway_node} does not reach {name}: {known.get('why')}")
    return None
