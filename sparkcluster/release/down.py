"""``down``: stop and remove what ``up`` made, on every node of the inventory and on machines that the user names."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from sparkcluster.errors import CommandFailed, StopError, UsageError
from sparkcluster.facts.model import Rank, read
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.launch import group as launching
from sparkcluster.plan.records import cluster_ranks, unreadable
from sparkcluster.probing.collect import collect_facts
from sparkcluster.report import Report, count
from sparkcluster.runtime.lease import Lease
from sparkcluster.spec import Spec
from sparkcluster.spec.inventory import Node

# The most machines that one node's record can name; a cluster has far fewer.
NAMED = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Former:
    """A machine in the records on the nodes ``named_by`` that is not in the inventory: only shown, and asked about."""

    name: str
    host: str
    named_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.host if self.name == self.host else f"{self.name} ({self.host})"

    def node(self) -> Node:
        """It as a node that is reached with the inventory's own settings; ValidationError if it cannot be one."""
        # A host that was used as the name may not be valid as a name.
        return Node(host=self.host, name=None if self.name == self.host else self.name)


def former_nodes(spec: Spec, records: Mapping[str, Mapping[str, Any]]) -> list[Former]:
    """Machines that ``records``, by the node that they were read on, name and the inventory does not."""
    labels = {node.label for node in spec.inventory.nodes}
    # A node may have another name now, unless several are behind one address.
    hosts = Counter(node.host for node in spec.inventory.nodes)
    found: dict[Former, list[str]] = {}
    for reader, recorded in records.items():
        nodes = recorded.get("nodes")
        for name, reached in list(nodes.items())[:NAMED] if isinstance(nodes, dict) else ():
            # A record of an older version also has how it was reached.
            with contextlib.suppress(KeyError, TypeError, ValueError):
                former = Former(name, reached["host"])
                if former.node().label not in labels and hosts[former.host] != 1:
                    found.setdefault(former, []).append(reader)
    return [dataclasses.replace(former, named_by=tuple(readers)) for former, readers in found.items()]


def down_there(spec: Spec, former: Iterable[Former]) -> str:
    """What to type to stop the ranks of the cluster on its nodes and on ``former``."""
    flags = [f"--also {machine.host}" for machine in former]
    return " ".join(["sparkcluster down", shlex.quote(str(spec.inventory_path)), *flags])


def typed_nodes(spec: Spec, hosts: Iterable[str]) -> list[Node]:
    """The machines that the user named with ``--also``; UsageError for one that is invalid or in the inventory."""
    for node in spec.inventory.nodes:
        for host in {node.host, node.label}.intersection(hosts):
            raise UsageError(f"--also {host}: this is {node.label} of the inventory", hint="leave that flag out")
    try:
        return [Node(host=host) for host in dict.fromkeys(hosts)]
    except ValidationError as error:
        host = error.errors()[0]["input"]
        raise UsageError(f"--also {ascii(host)[:60]}: neither an address nor a host name") from None


def down(
    fleet: Fleet, spec: Spec, report: Report, *, reach: Callable[[list[Node]], Fleet], also: Sequence[str] = ()
) -> tuple[dict[str, list[str]], list[Former]]:
    """Stop and remove every rank of the cluster on the nodes of the inventory and on the machines ``also``.

    ``reach`` connects to machines that are not in the inventory: where only a record names one, after a question.

    Returns:
        Names of the removed ranks by node, and the machines that records name and that were not contacted.

    Raises:
        UsageError: ``also`` has something that is no address, or is in the inventory.
        StopError: ranks are left on nodes that could not be reached or did not stop them.
        LeaseHeld: another operator holds the lease.
    """
    more, left, cluster = typed_nodes(spec, also), [], spec.inventory.cluster
    report.step("probe", count(len(fleet.hosts), "node"))
    collected = collect_facts(fleet, spec)
    facts, failed = dict(collected.facts), dict(collected.errors)
    records = {name: release.record for name, node in facts.items() if (release := read(node.release))}
    for former in former_nodes(spec, records):
        named = f"{former} is not in the inventory, but the record on {', '.join(former.named_by)} names it"
        if former.name in also or former.host in also:
            continue
        if report.confirm(f"{named}. Contact it and stop the ranks of {cluster} there?"):
            more.append(former.node())
        else:
            left.append(former)
            report.note(f"warning: {named}: not contacted, and ranks of {cluster} may still run there")
    if left:
        report.note(f"hint: {down_there(spec, left)}   stops them there as well")
    if more:
        fleet = fleet.joined(reach(more))
        joined = collect_facts(fleet, spec, [node.label for node in more])
        facts |= joined.facts
        failed |= joined.errors
    ranks: dict[str, tuple[Rank, ...]] = {}
    if facts:
        # Also where no rank was found: an up may be under way, or a killed one may have left a start under way.
        with Lease(fleet, cluster=cluster, state_dir=spec.inventory.state_dir, operation="down").acquire(
            list(facts)
        ) as lease:
            # Facts from before the lease may be stale.
            now = collect_facts(fleet, spec, list(facts))
            failed |= now.errors
            failed |= {
                name: CommandFailed(why, node=name, step="probe", hint=f"on {name}: systemctl status docker")
                for name, why in unreadable(now.facts).items()
            }
            present = cluster_ranks(cluster, now.facts)
            ranks = {name: found for name, found in present.ours.items() if found}
            if ranks:
                report.step("stop", count(sum(map(len, ranks.values())), "rank"))
            failed |= launching.stop(lease.changer, ranks)
            wipe = {
                name: [{"do": "delete", "path": f"{node.state_dir}/clusters/{cluster}/ranks"}]
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
    return {name: [rank.name for rank in found] for name, found in ranks.items()}, left
