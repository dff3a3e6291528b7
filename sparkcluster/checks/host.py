"""Checks of ports and of logind on each node."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkcluster import engines
from sparkcluster.checks.check import Context, Seen, check, node_check
from sparkcluster.checks.docker import hand_over
from sparkcluster.facts.base import read
from sparkcluster.facts.docker import OtherContainer
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts
from sparkcluster.facts.network import Listener
from sparkcluster.findings import edit, on_node
from sparkcluster.node.shared import LABEL_CLUSTER, LABEL_RANK
from sparkcluster.topology import parallel
from sparkcluster.topology.model import Group

ANYWHERE = {"0.0.0.0", "::", "*"}  # noqa: S104 - what listeners are compared with
# Names of the processes of engines in containers, as root sees them.
_OF_ENGINES = re.compile(rf"(?i)python|ray|sglang|llama|{'|'.join(engines.names())}")
# logind ignores users with a lower ID (SYS_UID_MAX of login.defs is 999 on Ubuntu).
FIRST_PERSON = 1000


@check(
    "HOST-004",
    "The ports of the launch are free",
    needs=("listeners",),
    source="practitioners' reports: `docker run` exit 125, or a crash after minutes",
    remedy="stop the other process, or set another api.port",
)
def ports(context: Context) -> Iterator[Seen]:
    """The launch fails after minutes, once the model is loaded, because the port is in use."""
    for group in context.topology.groups:
        name, facts = group.head.name, context.facts[group.head.name]
        for port, address, use, instead in () if context.runs_rank(name) else _ports(context, group):
            for listener in read(facts.listeners) or ():
                clash = listener.address in {address, *ANYWHERE} or address in ANYWHERE
                if listener.port == port and clash:
                    process, holders, other = _process(context, facts, listener)
                    yield Seen(
                        f"port {port} of {name} is in use{f' by cluster {other}' if other else ''}, and {use} needs it",
                        f"{process} listens on {listener.address}:{port}",
                        (
                            *hand_over(context, name, holders),
                            f"sparkcluster down, with the inventory of cluster {other}"
                            if other
                            else on_node(f"sudo ss -ltnp 'sport = :{port}'"),
                            *([edit(f"set {instead}", instead=True)] if instead else []),
                        ),
                        node=name,
                    )
                    break


@node_check(
    "HOST-016",
    "Shared memory of ranks survives logout",
    needs=("remove_ipc",),
    severity="warning",
    source="logind.conf(5), RemoveIPC; systemd#2039",
    remedy=[on_node("sudo loginctl enable-linger {user}")],
)
def remove_ipc(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """When the last session of the user ends, the engine loses its semaphores and shared memory, and crashes.

    logind removes IPC objects of ordinary users (RemoveIPC, on by default). With runtime `process`, ranks belong to the
    SSH user. In containers they belong to root, unless the image sets another user, and are not affected: info.
    """
    if facts.remove_ipc is True and facts.uid >= FIRST_PERSON and not facts.lingers:
        yield Seen(
            f"{name} removes shared memory of {facts.user} at logout",
            f"RemoveIPC=yes, uid {facts.uid}",
            severity="info" if context.docker else "warning",
            values={"user": facts.user},
        )


def _process(context: Context, facts: Facts, listener: Listener) -> tuple[str, list[OtherContainer], str | None]:
    """The listening process, and the container or other cluster that it may belong to."""
    process = listener.process or "a process of another user"
    publishing = [each for each in facts.containers if listener.port in each.ports]
    if publishing:
        return f"the container {publishing[0].name}", publishing[:1], None
    engine = listener.process is None or _OF_ENGINES.match(listener.process) is not None
    for rank in (read(facts.ranks) or ()) if engine else ():
        cluster = rank.labels.get(LABEL_CLUSTER)
        first = rank.state == "running" and rank.labels.get(LABEL_RANK, "0") == "0"
        if first and cluster and cluster not in {context.spec.inventory.cluster, context.spec.gateway_cluster}:
            return f"{process}, probably of {rank.name},", [], cluster
    hosted = [each for each in facts.containers if each.host_network]
    inside = [each for each in hosted if each.engine] or (hosted if len(hosted) == 1 else [])
    if inside and engine:
        return f"{process}, perhaps of the container {' or '.join(each.name for each in inside)},", inside, None
    return process, [], None


def _ports(context: Context, group: Group) -> Iterator[tuple[int, str, str, str]]:
    """Ports of rank 0 with address, use and the setting to change, if any; empty if its node did not answer."""
    if group.head.rank > 0:
        return
    yield group.api_port, group.api_host, "the API", "another api.port in the inventory"
    engine = engine_of(context.facts[group.head.name])
    if meet := parallel.rendezvous(context.spec.playbook, group, engine, bring_ray=context.docker):
        # The rendezvous may listen on all addresses, so a listener on any address is a conflict.
        other = "native" if meet[0] == group.ray_port else "ray"
        instead = f"executor: {other} in the playbook" if other in context.engine.executors else ""
        yield meet[0], "0.0.0.0", meet[1], instead  # noqa: S104
