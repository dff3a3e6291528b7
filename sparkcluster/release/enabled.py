"""``enable`` and ``disable``: guards on the nodes that restart the recorded release after a reboot."""

from __future__ import annotations

import secrets as random
import shlex
import time
from collections.abc import Collection, Mapping
from typing import Any

from sparkcluster import engines
from sparkcluster.endpoint.ask import request
from sparkcluster.endpoint.find import endpoints
from sparkcluster.errors import LaunchError, UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.model import EnabledFact, Facts
from sparkcluster.hosts.fleet import Fleet, all_values, failures
from sparkcluster.hosts.program import standalone
from sparkcluster.inspect.cluster import View, connected, see
from sparkcluster.inspect.releases import node_records
from sparkcluster.inspect.status import status
from sparkcluster.release import rollback_target
from sparkcluster.release.stopping import end_guards, guard_works, stop, stop_on_failures
from sparkcluster.report import Report, count
from sparkcluster.runtime.change import Installed
from sparkcluster.runtime.lease import RETRY_S, START_WAIT_S, Lease, wait_for
from sparkcluster.runtime.memory import evict_step
from sparkcluster.runtime.ranks import start_steps
from sparkcluster.spec import Spec

# Above the ports of Ray and torch, and below those that Linux chooses from.
FIRST_PORT = 29_750
_CHANGE_S = 180.0
RUNS_S = 20.0
"""How long a guard may take to start: systemd needs a second, and the lab checks every few seconds."""


def start_documents(
    view: View,
    names: Collection[str],
    hashes: Mapping[str, Mapping[str, Any]],
    *,
    failed: Collection[str],
    ready_timeout_s: float,
) -> dict[str, dict[str, Any] | None]:
    """By node, the document that restarts its rank of the groups ``names`` as it was started; no secrets. Pure.

    Empty for nodes of groups that keep running, None for nodes of groups that ``failed``. ``hashes`` are the groups'
    hashes of secrets; the values are in what the node keeps of the release.
    """
    (topology, plan), spec, facts = view.ready(), view.spec, view.facts
    entry = standalone("launcher", spec.playbook.engine)
    apis, counters = endpoints(plan.as_json(), plan.engine), engines.engine(plan.engine).counters
    documents: dict[str, dict[str, Any] | None] = {}
    for name, node in plan.nodes.items():
        documents[name] = None if node.group in failed else {}
        if node.group not in names:
            continue
        peers = {other for other, each in plan.nodes.items() if each.group == node.group and other != name}
        asked = request(apis[node.group], spec.playbook.verifying, counters=counters) | {"max_tokens": 1}
        steps = start_steps(node, entry=entry, secrets={}, hashes=hashes.get(node.group, {}), kept_secrets=0)
        documents[name] = {
            "group": node.group,
            "head": node.role == "head",
            "address": topology.members[name].address,
            "peers": {other: topology.members[other].address for other in sorted(peers)},
            "ranks": [rank.name for rank in node.containers],
            "steps": [evict_step(spec.playbook, facts[name], node.containers[0].image), *steps],
            "ask": asked if node.role == "head" else None,
            "ready_timeout_s": ready_timeout_s,
            **({"planned_bytes": planned_bytes(spec, 1 + len(peers))} if spec.siblings or spec.gateway_node else {}),
        }
    return documents


def planned_bytes(spec: Spec, nodes: int) -> int | None:
    """Free memory that an engine on each of ``nodes`` needs to start, without its processes' own memory.

    None if it is unknown.
    """
    from sparkcluster.fit.source import spark  # noqa: PLC0415 - a single model needs neither
    from sparkcluster.inspect.budget import part  # noqa: PLC0415

    found = part(spec.model, spec.playbook, nodes, spark())
    return found.bytes - found.host_bytes if found.kind == "computed" else None


def enable(fleet: Fleet, spec: Spec, report: Report, *, yes: bool) -> tuple[int, dict[str, Installed]]:
    """Install guards on every node of the running release; ``yes`` accepts inventory and record without asking.

    Returns:
        The number of the release that they restart, and the guard of each node.

    Raises:
        UsageError: no release serves, or its record is not accepted.
        LeaseHeld: another operator holds the lease.
        SparkclusterError: a node could not be changed.
    """
    all_values(connected(fleet, spec, report).unread)
    with Lease(fleet, spec.inventory, "enable").acquire(list(fleet.hosts)) as lease:
        view = see(fleet, spec)
        document, facts = status(fleet, view), view.facts
        if document["state"] != "serving":
            raise UsageError(
                f"{spec.inventory.cluster} does not serve; only a serving release can be enabled",
                hint="sparkcluster up INVENTORY, then sparkcluster enable INVENTORY",
            )
        number = document["release"]
        rollback_target.find(spec, number, node_records(fleet, spec)[0], report, yes=yes)
        nodes = [name for group in view.groups.values() for name in group.ranks]
        if former := [name for name in nodes if name not in facts]:
            why = f"the release also runs on {', '.join(former)}, not in the inventory; nothing was enabled"
            raise LaunchError(why, step="enable", hint="add it to nodes, or sparkcluster up INVENTORY --replace")
        report.step("enable", f"release {number} on {count(len(nodes), 'Spark')}")
        config = {
            "cluster": spec.inventory.cluster,
            "runtime": spec.inventory.runtime.kind,
            "port": free_port(facts, nodes, FIRST_PORT + sorted([spec.model, *spec.siblings]).index(spec.model)),
            "token": random.token_hex(32),
            **({"on_demand": True, "door_token": random.token_hex(32)} if spec.idle_s is not None else {}),
            **({"on_event": spec.inventory.on_event} if spec.inventory.on_event else {}),
        }
        step = {"do": "enable", "number": number, "program": standalone("guard", spec.playbook.engine)}
        steps = {
            name: [{**step, "config": {**config, "node": name, "state_dir": facts[name].state_dir}}] for name in nodes
        }
        results = lease.changer.apply(steps, timeout_s=_CHANGE_S)
    return number, {name: found for name, (found,) in results.items()}


def load_on_demand(fleet: Fleet, spec: Spec, report: Report, *, yes: bool) -> None:
    """Install guards that load the running model on demand, and stop it.

    Raises:
        LaunchError: a guard does not run; or as ``enable``.
        StopError: a rank could not be stopped.
    """
    _, installed = enable(fleet, spec, report, yes=yes)
    # A guard may stop the ranks as well, since no request needs them yet.
    with wait_for(lambda: Lease(fleet, spec.inventory, "up"), list(installed), report, START_WAIT_S) as lease:
        ranks = {name: found for name, found in see(fleet, spec).ranks.ours.items() if found}
        report.step("unload", "until a request or sparkcluster load")
        with wait_for(lambda: Lease(fleet, spec.inventory, "up", "start"), ranks, report, START_WAIT_S):
            failed = stop(lease.changer, ranks, report)
    stop_on_failures(failed, "up")
    require_running(fleet, spec, installed)


def require_running(fleet: Fleet, spec: Spec, installed: Mapping[str, Installed]) -> None:
    """Wait until the ``installed`` guards run.

    Raises:
        LaunchError: one does not, for example without systemd; the hint has the command that starts it.
    """
    until = time.monotonic() + RUNS_S
    while True:
        facts = see(fleet, spec, [*installed]).facts
        running = [name for name, node in facts.items() if (guard := read(node.enabled)) and guard.runs]
        if not (idle := [name for name in installed if name not in running]):
            return
        if time.monotonic() > until:
            why = f"the guard of {spec.inventory.cluster} on {idle[0]} does not run, so the model cannot be loaded"
            command = shlex.join(installed[idle[0]].command)
            hint = f"on {idle[0]}: {command}   at every boot, as the login user; then sparkcluster up INVENTORY"
            raise LaunchError(why, node=idle[0], step="enable", hint=hint)
        time.sleep(RETRY_S)


def guards(facts: Mapping[str, Facts]) -> list[EnabledFact | None]:
    """The guards of the nodes; None for nodes without one."""
    return [read(node.enabled) for node in facts.values()]


def disable(fleet: Fleet, spec: Spec, report: Report) -> list[str]:
    """Remove the guards from the nodes of the inventory that answer; returns the nodes that had one.

    Raises:
        LeaseHeld: another operator holds the lease.
        StopError: a node did not answer or was not changed; the others were.
    """
    view = connected(fleet, spec, report)
    failed = dict(view.collected.errors)
    if guard_works(view):
        end_guards(fleet, view)
    with Lease(fleet, spec.inventory, "disable").acquire(list(view.facts), lost=failed) as lease:
        steps = {name: [{"do": "disable"}] for name in view.facts if name not in failed}
        if steps:
            report.step("disable", count(len(steps), "Spark"))
        failed |= failures(lease.changer.attempt(steps, timeout_s=_CHANGE_S))
    stop_on_failures(failed, "disable")
    return [name for name, node in view.facts.items() if read(node.enabled) is not None]


def free_port(facts: Mapping[str, Facts], nodes: Collection[str], first: int) -> int:
    """A port from ``first`` on that is free on all ``nodes``; each model of a node gets its own."""
    taken = {listener.port for name in nodes for listener in read(facts[name].listeners) or ()}
    return next(port for port in range(first, 32_768) if port not in taken)
