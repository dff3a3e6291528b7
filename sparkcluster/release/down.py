"""``down``: stop and remove what ``up`` made, on every node of the inventory and on machines that the user names."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import ValidationError

from sparkcluster.errors import CommandFailed, StopError, UsageError
from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.docker import Rank
from sparkcluster.facts.release_record import Record
from sparkcluster.hosts.fleet import Fleet, failures
from sparkcluster.inspect.cluster import see
from sparkcluster.node.shared import SWITCH_FILE
from sparkcluster.plan.release_record import unreadable
from sparkcluster.release.stopping import stop
from sparkcluster.report import Report, count
from sparkcluster.runtime.lease import Lease
from sparkcluster.spec import Spec
from sparkcluster.spec.inventory import Node


def former_nodes(spec: Spec, records: Mapping[str, Record]) -> dict[Node, list[str]]:
    """Machines that are in ``records`` and not in the inventory, and the nodes that those records were read on.

    They are shown and asked about. They have no settings but the inventory's, whatever an older record says.
    """
    labels = {node.label for node in spec.inventory.nodes}
    # A node may have another name now, unless several are behind one address.
    hosts = Counter(node.host for node in spec.inventory.nodes)
    found: dict[Node, list[str]] = {}
    for reader, record in records.items():
        for name, reached in record.get("nodes", {}).items():
            with contextlib.suppress(ValidationError):
                # A host that was used as the name may not be valid as a name.
                node = Node(host=reached["host"], name=None if name == reached["host"] else name)
                if name not in labels and hosts[node.host] != 1:
                    found.setdefault(node, []).append(reader)
    return found


def shown(node: Node) -> str:
    """Name and address of a machine, for people."""
    return node.host if node.name is None else f"{node.name} ({node.host})"


def down_there(former: Iterable[Node]) -> str:
    """What to type to stop the ranks of the cluster on its nodes and on ``former``."""
    flags = [f"--also {node.host}" for node in former]
    return " ".join(["sparkcluster down INVENTORY", *flags])


def typed_nodes(spec: Spec, hosts: Iterable[str]) -> list[Node]:
    """The machines that the user named with ``--also``; UsageError for one that is invalid or in the inventory."""
    for node in spec.inventory.nodes:
        for host in {node.host, node.label}.intersection(hosts):
            raise UsageError(f"--also {host}: {node.label} is in the inventory", hint=f"remove --also {host}")
    try:
        return [Node(host=host) for host in dict.fromkeys(hosts)]
    except ValidationError as error:
        host = error.errors()[0]["input"]
        raise UsageError(f"--also {host[:60]}: neither an address nor a host name") from None


def down(
    fleet: Fleet, spec: Spec, report: Report, *, reach: Callable[[list[Node]], Fleet], also: Sequence[str] = ()
) -> tuple[dict[str, list[str]], dict[Node, list[str]]]:
    """Stop and remove every rank of the cluster on the nodes of the inventory and on the machines ``also``.

    ``reach`` connects to machines that are not in the inventory. One that only a record names is named, and not
    contacted.

    Returns:
        Names of the removed ranks by node, and the machines that were not contacted as ``former_nodes`` has them.

    Raises:
        UsageError: ``also`` has something that is no address, or is in the inventory.
        StopError: ranks are left on nodes that could not be reached or did not stop them.
        LeaseHeld: another operator holds the lease.
    """
    more, cluster = typed_nodes(spec, also), spec.inventory.cluster
    fleet = fleet.joined(reach(more)) if more else fleet
    report.step("connect", count(len(fleet.hosts), "Spark"))
    view = see(fleet, spec, list(fleet.hosts))
    failed = dict(view.collected.errors)
    records = {name: release.record for name, found in view.facts.items() if (release := read(found.release))}
    for name in [name for name, found in view.facts.items() if isinstance(found.release, Unread)]:
        report.note(f"warning: the record on {name} cannot be read; ranks may run on machines that only it names")
    former = former_nodes(spec, records)
    left = {node: readers for node, readers in former.items() if not {node.label, node.host}.intersection(also)}
    for node, readers in left.items():
        named = f"{shown(node)} is not in the inventory, but the record on {', '.join(readers)} names it"
        report.note(f"warning: {named}: not contacted, and ranks of {cluster} may still run there")
    if left:
        report.note(f"hint: {down_there(left)}   stops them there as well")
    ranks: dict[str, tuple[Rank, ...]] = {}
    if view.facts:
        # Also where no rank was found: an up may be under way, or a killed one may have left a start under way.
        with Lease(fleet, spec.inventory, "down").acquire(list(view.facts), lost=failed) as lease:
            # Facts from before the lease may be stale.
            now = see(fleet, spec, [name for name in view.facts if name not in failed])
            failed |= now.collected.errors
            failed |= {
                name: CommandFailed(why, node=name, step="connect", hint=f"on {name}: systemctl status docker")
                for name, why in unreadable(now.facts).items()
            }
            ranks = {name: found for name, found in now.ranks.ours.items() if found}
            if ranks:
                report.step("stop", count(sum(map(len, ranks.values())), "rank"))
            # First: a guard restarts what is gone.
            stay = {name: [{"do": "stay-down"}] for name, node in now.facts.items() if node.enabled is not None}
            stay = {name: steps for name, steps in stay.items() if name not in failed}
            failed |= failures(lease.changer.attempt(stay, timeout_s=60))
            failed |= stop(lease.changer, ranks, report)
            wipe = {
                name: [
                    {"do": "delete", "path": f"{node.state_dir}/clusters/{cluster}/ranks"},
                    {"do": "delete", "path": f"{node.state_dir}/clusters/{cluster}/{SWITCH_FILE}"},
                ]
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
