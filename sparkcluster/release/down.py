"""``down``: stop and remove what ``up`` made, on every node of the inventory and of the newest record."""

from __future__ import annotations

from collections.abc import Callable

from sparkcluster.errors import CommandFailed, StopError
from sparkcluster.facts.model import Rank
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.launch import group as launching
from sparkcluster.plan.records import cluster_ranks, newest, unreadable
from sparkcluster.probing.collect import collect_facts
from sparkcluster.report import Report, count
from sparkcluster.runtime.lease import Lease
from sparkcluster.spec import Spec
from sparkcluster.spec.inventory import Node, Ssh


def former_nodes(spec: Spec, recorded: dict[str, object]) -> list[Node]:
    """Nodes of the newest record that are no longer in the inventory, as they were reached then."""
    present = {node.label for node in spec.inventory.nodes}
    # A node may have another name now; behind one address several may be reached by their ports.
    addresses = {(node.host, spec.inventory.node_ssh(node).port) for node in spec.inventory.nodes}
    nodes = recorded.get("nodes")
    if not isinstance(nodes, dict):
        return []
    return [
        Node.model_validate(
            {
                "host": reached["host"],
                # A host that was used as the name may not be valid as a name.
                "name": None if name == reached["host"] else name,
                "connection": reached.get("connection", "auto"),
                "ssh": Ssh.model_validate(reached.get("ssh", {})),
            }
        )
        for name, reached in nodes.items()
        if name not in present and (reached["host"], Ssh.model_validate(reached.get("ssh", {})).port) not in addresses
    ]


def down(fleet: Fleet, spec: Spec, report: Report, *, reach: Callable[[list[Node]], Fleet]) -> dict[str, list[str]]:
    """Stop and remove every rank of the cluster; names of those removed, by node.

    ``reach`` connects to nodes that are only in the record.

    Raises:
        StopError: ranks are left on nodes that could not be reached or did not stop them.
        LeaseHeld: another operator holds the lease.
    """
    report.step("probe", count(len(fleet.hosts), "node"))
    collected = collect_facts(fleet, spec)
    release = newest(collected.facts.values())
    former = former_nodes(spec, release.record if release else {})
    facts, failed = dict(collected.facts), dict(collected.errors)
    if former:
        report.note(
            f"also on {', '.join(node.label for node in former)}: in the newest release, no longer in the inventory"
        )
        fleet = fleet.joined(reach(former))
        more = collect_facts(fleet, spec, [node.label for node in former])
        facts |= more.facts
        failed |= more.errors
    ranks: dict[str, tuple[Rank, ...]] = {}
    if facts:
        # Also where no rank was found: an up may be under way, or a killed one may have left a start under way.
        with Lease(fleet, cluster=spec.inventory.cluster, state_dir=spec.inventory.state_dir, operation="down").acquire(
            list(facts)
        ) as lease:
            # Facts from before the lease may be stale.
            now = collect_facts(fleet, spec, list(facts))
            failed |= now.errors
            failed |= {
                name: CommandFailed(why, node=name, step="probe", hint=f"on {name}: systemctl status docker")
                for name, why in unreadable(now.facts).items()
            }
            present = cluster_ranks(spec.inventory.cluster, now.facts)
            ranks = {name: found for name, found in present.ours.items() if found}
            if ranks:
                report.step("stop", count(sum(map(len, ranks.values())), "rank"))
            failed |= launching.stop(lease.changer, ranks)
            wipe = {
                name: [{"do": "delete", "path": f"{node.state_dir}/clusters/{spec.inventory.cluster}/ranks"}]
                for name, node in now.facts.items()
                if name not in failed
            }
            lease.changer.attempt(wipe, timeout_s=60)
    if failed:
        name, error = next(iter(failed.items()))
        raise StopError(
            f"could not clean {', '.join(failed)}: {error.message.removeprefix(f'{name}: ')}",
            node=name,
            step="stop",
            hint=f"{error.hint}; then sparkcluster down again" if error.hint else "run sparkcluster down again",
        )
    return {name: [rank.name for rank in found] for name, found in ranks.items()}
