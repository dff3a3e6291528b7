"""``down``: stop and remove the ranks on every node of the inventory and on machines that the user names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import ValidationError

from sparkcluster.errors import UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.release_record import Record
from sparkcluster.hosts.fleet import Fleet, failures
from sparkcluster.inspect.cluster import connected, see
from sparkcluster.node.shared import SWITCH_FILE
from sparkcluster.release.stopping import end_guards, guard_works, stop, stop_on_failures
from sparkcluster.report import Report, count
from sparkcluster.runtime.lease import START_WAIT_S, Lease, wait_for
from sparkcluster.spec import Spec
from sparkcluster.spec.inventory import Node


def former_nodes(spec: Spec, records: Mapping[str, Record]) -> dict[Node, list[str]]:
    """Machines that are in ``records`` but not in the inventory, with the nodes whose records name them.

    They get the inventory's settings, whatever an older record says.
    """
    labels = {node.label for node in spec.inventory.nodes}
    hosts = {node.host for node in spec.inventory.nodes}  # a node may have another name now
    found: dict[Node, list[str]] = {}
    for reader, record in records.items():
        for name, reached in record.get("nodes", {}).items():
            with contextlib.suppress(ValidationError):
                # A host that was used as the name may not be valid as a name.
                node = Node(host=reached["host"], name=None if name == reached["host"] else name)
                if name not in labels and node.host not in hosts:
                    found.setdefault(node, []).append(reader)
    return found


def shown(node: Node) -> str:
    """Name and address of a machine, for people."""
    return node.host if node.name is None else f"{node.name} ({node.host})"


def down_there(former: Iterable[Node]) -> str:
    """The command that stops the ranks of the cluster on its nodes and on ``former``."""
    flags = [f"--also {node.host}" for node in former]
    return " ".join(["sparkcluster down INVENTORY", *flags])


def typed_nodes(spec: Spec, hosts: Iterable[str]) -> list[Node]:
    """The machines of ``--also``; UsageError if one is invalid or in the inventory."""
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

    ``reach`` connects to machines that are not in the inventory. Machines that are only in a record are reported, not
    contacted.

    Returns:
        Names of the removed ranks by node, and the machines that were not contacted, as from ``former_nodes``.

    Raises:
        UsageError: ``also`` has an invalid address, or one that is in the inventory.
        StopError: some nodes could not be reached or did not stop their ranks.
        LeaseHeld: another operator holds the lease.
    """
    more, cluster = typed_nodes(spec, also), spec.inventory.cluster
    fleet = fleet.joined(reach(more)) if more else fleet
    view = connected(fleet, spec, report)
    failed = dict(view.collected.errors)
    records = {name: release.record for name, found in view.facts.items() if (release := read(found.release))}
    former = former_nodes(spec, records).items()
    left = {node: readers for node, readers in former if not {node.label, node.host}.intersection(also)}
    for node, readers in left.items():
        named = f"{shown(node)} is not in the inventory, but a record on {', '.join(readers)} names it"
        report.note(f"warning: {named}: not contacted; ranks of {cluster} may still run there")
    if left:
        report.note(f"hint: {down_there(left)}   also stops them there")
    if spec.idle_s is not None and guard_works(view):  # loading may take minutes
        end_guards(fleet, view)
    # Even without ranks: an up may be running, or a killed up may have left a start in progress.
    with Lease(fleet, spec.inventory, "down").acquire(list(view.facts), lost=failed) as lease:
        # The facts from before the lease may be stale.
        now = see(fleet, spec, [name for name in view.facts if name not in failed])
        failed |= now.unread
        ranks = {name: found for name, found in now.ranks.ours.items() if found}
        if ranks:
            report.step("stop", count(sum(map(len, ranks.values())), "rank"))
        # First, since a guard would restart removed ranks.
        enabled = [name for name, node in now.facts.items() if node.enabled is not None and name not in failed]
        failed |= failures(lease.changer.attempt({name: [{"do": "stay-down"}] for name in enabled}, timeout_s=60))
        with wait_for(lambda: Lease(fleet, spec.inventory, "down", "start"), ranks, report, START_WAIT_S, failed):
            failed |= stop(lease.changer, ranks, report)
        places = {name: f"{node.state_dir}/clusters/{cluster}" for name, node in now.facts.items()}
        wipe = {
            name: [{"do": "delete", "path": f"{place}/{each}"} for each in ("ranks", SWITCH_FILE)]
            for name, place in places.items()
            if name not in failed
        }
        lease.changer.attempt(wipe, timeout_s=60)
    stop_on_failures(failed, "down", "".join(f" --also {node.host}" for node in more))
    return {name: [rank.name for rank in found] for name, found in ranks.items()}, left
