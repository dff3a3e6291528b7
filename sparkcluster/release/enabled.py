"""``enable`` and ``disable``: guards on the nodes that bring the recorded release back after a reboot."""

from __future__ import annotations

import dataclasses
import secrets as random
from collections.abc import Collection, Mapping
from typing import Any

from sparkcluster import engines
from sparkcluster.endpoint.ask import request
from sparkcluster.endpoint.find import endpoints
from sparkcluster.errors import LaunchError, LeaseHeld, StopError, UsageError
from sparkcluster.facts.base import Fact, read
from sparkcluster.facts.model import Facts
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet, all_values, failures
from sparkcluster.hosts.program import call, standalone
from sparkcluster.inspect.cluster import View, see
from sparkcluster.inspect.releases import node_records
from sparkcluster.inspect.status import status
from sparkcluster.plan.release_record import recorded_groups
from sparkcluster.release import rollback_target
from sparkcluster.report import Report, count
from sparkcluster.runtime.change import Installed
from sparkcluster.runtime.lease import Lease
from sparkcluster.runtime.memory import evict_step
from sparkcluster.runtime.ranks import start_steps
from sparkcluster.spec import Spec

# Above Ray's and torch's ports, and below those that Linux chooses from.
FIRST_PORT = 29_750
_PORTS = 100
_CHANGE_S = 180.0


class _Ended(Fact):
    """The guard of a node has ended."""


@dataclasses.dataclass(frozen=True, slots=True)
class Enabled:
    """How ``enable`` ended: the release that guards bring back, and the guard of each node."""

    release: int
    nodes: Mapping[str, Installed]


def start_documents(
    view: View,
    names: Collection[str],
    hashes: Mapping[str, Mapping[str, Any]],
    *,
    failed: Collection[str],
    ready_timeout_s: float,
) -> dict[str, dict[str, Any] | None]:
    """By node, what starts its rank of the groups ``names`` again as it was started; without a secret. Pure.

    Empty for nodes of groups that go on, None for those of groups that ``failed``. ``hashes`` are those of the secrets,
    by group; their values come from what the node keeps of the release.
    """
    (topology, plan), spec, facts = view.ready(), view.spec, view.facts
    entry = standalone("launcher", spec.playbook.engine)
    apis = endpoints(plan.as_json(), plan.engine)
    documents: dict[str, dict[str, Any] | None] = {
        name: None if node.group in failed else {} for name, node in plan.nodes.items()
    }
    for group in topology.groups:
        if group.name not in names:
            continue
        counters = engines.engine(plan.engine).counters
        asked = request(apis[group.name], spec.playbook.verifying, counters=counters)
        asked |= {"max_tokens": 1}
        addresses = {member.name: member.address for member in group.members}
        for name in group.names:
            planned = plan.nodes[name]
            image = next((rank.image for rank in planned.containers), None)
            steps = start_steps(planned, entry=entry, secrets={}, hashes=hashes.get(group.name, {}), kept_secrets=0)
            documents[name] = {
                "group": group.name,
                "head": planned.role == "head",
                "address": addresses[name],
                "peers": {other: address for other, address in addresses.items() if other != name},
                "ranks": [rank.name for rank in planned.containers],
                "steps": [evict_step(spec.playbook, facts[name], image), *steps],
                "ask": asked if planned.role == "head" else None,
                "ready_timeout_s": ready_timeout_s,
            }
    return documents


def enable(fleet: Fleet, spec: Spec, report: Report, *, yes: bool) -> Enabled:
    """Install guards on every node of what serves; ``yes`` accepts unasked what inventory and record can do.

    Raises:
        UsageError: no release serves, or its record is not accepted.
        LeaseHeld: another operator has the lease.
        SparkclusterError: a node could not be changed.
    """
    report.step("connect", count(len(fleet.hosts), "Spark"))
    document = status(fleet, see(fleet, spec))
    if document["state"] != "serving":
        raise UsageError(
            f"{spec.inventory.cluster} does not serve, and what comes back after a reboot is what serves",
            hint="sparkcluster up INVENTORY; then enable",
        )
    rollback_target.find(spec, document["release"], node_records(fleet, spec)[0], report, yes=yes)
    with Lease(fleet, spec.inventory, "enable").acquire(list(fleet.hosts)) as lease:
        view = see(fleet, spec)
        all_values(view.collected.errors, LeaseHeld)
        newest, facts = view.newest, view.facts
        groups = recorded_groups(newest.record) if newest else {}
        nodes = [name for group in groups.values() for name in group.ranks]
        former = [name for name in nodes if name not in facts]
        if newest is None or former or newest.number != document["release"]:
            why = f"{', '.join(former)} left the inventory" if former else "the release changed meanwhile"
            raise LaunchError(f"{why}; nothing was enabled", step="enable", hint="sparkcluster status INVENTORY")
        report.step("enable", f"release {newest.number} on {count(len(nodes), 'Spark')}")
        config = {
            "cluster": spec.inventory.cluster,
            "runtime": spec.inventory.runtime.kind,
            "port": free_port(facts, nodes),
            "token": random.token_hex(32),
        }
        step = {
            "do": "enable",
            "number": newest.number,
            "program": standalone("guard", spec.playbook.engine),
        }
        steps = {
            name: [{**step, "config": {**config, "node": name, "state_dir": facts[name].state_dir}}] for name in nodes
        }
        results = lease.changer.apply(steps, timeout_s=_CHANGE_S)
    return Enabled(newest.number, {name: found for name, (found,) in results.items()})


def disable(fleet: Fleet, spec: Spec, report: Report) -> list[str]:
    """Remove the guards from the nodes of the inventory that answer; the nodes that had one.

    Raises:
        LeaseHeld: another operator has the lease.
        StopError: a node did not answer, or was not changed; the others were.
        HostError: none answered.
    """
    report.step("connect", count(len(fleet.hosts), "Spark"))
    view = see(fleet, spec)
    failed = dict(view.collected.errors)
    if not view.facts:
        all_values(failed, LeaseHeld)
    if view.lease is not None and view.lease.operation == "restart":
        end_guards(fleet, spec, view.facts)
    with Lease(fleet, spec.inventory, "disable").acquire(list(view.facts), lost=failed) as lease:
        report.step("disable", count(len(view.facts), "Spark"))
        steps = {name: [{"do": "disable"}] for name in view.facts if name not in failed}
        failed |= failures(lease.changer.attempt(steps, timeout_s=_CHANGE_S))
    if failed:
        name, error = next(iter(failed.items()))
        raise StopError(
            f"not disabled on {', '.join(failed)}: {error.message.removeprefix(f'{name}: ')}",
            node=name,
            step="disable",
            hint="sparkcluster disable INVENTORY   again, once it answers",
        )
    return [name for name, node in view.facts.items() if read(node.enabled) is not None]


def end_guards(fleet: Fleet, spec: Spec, nodes: Collection[str]) -> None:
    """End the guards of ``nodes``, one of which has the lease, since it restarts its group."""
    request = {"state_dir": spec.inventory.state_dir, "cluster": spec.inventory.cluster}

    def end(host: Host) -> _Ended:
        return call(host, "unit", request, answer=_Ended, timeout_s=90)

    all_values(fleet.each(end, list(nodes)), LeaseHeld)


def free_port(facts: Mapping[str, Facts], nodes: Collection[str]) -> int:
    """A port on which nothing listens on any of ``nodes``."""
    taken = {listener.port for name in nodes for listener in read(facts[name].listeners) or ()}
    return next((port for port in range(FIRST_PORT, FIRST_PORT + _PORTS) if port not in taken), FIRST_PORT)
