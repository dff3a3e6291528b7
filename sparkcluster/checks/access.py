"""Checks for exposed services and wrong networks: API without a key, Ray's job API, rails that are not QSFP cables."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.check import Context, Seen, check, link_check, node_check
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.findings import edit, here, on_node
from sparkcluster.node.shared import CONTAINER_INTERFACES, TUNNEL_INTERFACES
from sparkcluster.spec.inventory import OPEN_API
from sparkcluster.topology.model import Link

# Where Ray's dashboard and job API listen unless told otherwise (docs.ray.io, "Configuring Ray: ports").
RAY_DASHBOARD_PORT = 8265


@check(
    OPEN_API,
    "The API requires a key if others can reach it",
    stage="written",
    severity="warning",
    remedy=(
        here("sparkcluster key INVENTORY"),
        edit("set api.host in the inventory to 127.0.0.1, and use an SSH tunnel", instead=True),
    ),
)
def key(context: Context) -> Iterator[Seen]:
    """Anyone who reaches the port can use the model, read its metrics and fill its queue.

    An API on loopback or on the interconnect is not exposed.
    """
    api, gateway = context.spec.inventory.api, context.spec.inventory.gateway
    if api.open_without_key:
        seen = f"api.host: {api.host}, port {gateway.port if gateway else api.port}"
        yield Seen("the API requires no key, and is open to the network", seen)


@node_check(
    "NET-021",
    "Ray's job API is not open to the network",
    needs=("listeners",),
    severity="warning",
    source="docs.ray.io, Security: anyone who reaches the dashboard can run code; CVE-2023-48022",
    remedy=(
        on_node(f"sudo ss -ltnp 'sport = :{RAY_DASHBOARD_PORT}'"),
        "ray stop, or start it with --include-dashboard=false",
    ),
)
def jobs(_: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """Anyone who reaches it can run commands on the node, without a password.

    sparkcluster starts Ray without a dashboard; another Ray listens on port 8265.
    """
    for listener in read(facts.listeners) or ():
        # The process is None if it belongs to another user.
        ray = listener.process is None or listener.process.startswith(("ray", "python"))
        if listener.port == RAY_DASHBOARD_PORT and ray and not listener.address.startswith(("127.", "::1")):
            seen = f"{listener.process or 'a process of another user'} on {listener.address}:{listener.port}"
            yield Seen(f"a Ray dashboard on {name} is open to the network", seen)
            break


@link_check(
    "NET-022",
    "Rails are cables between the nodes",
    source="practitioners' reports on Gloo over docker0",
    remedy=(
        edit("set interconnect: auto in the inventory, or list interfaces of the QSFP ports"),
        on_node("ip -br addr"),
    ),
)
def cables(context: Context, name: str, link: Link) -> Iterator[Seen]:
    """Ranks wait for each other until Gloo or NCCL times out: `DistStoreError 1/2 clients joined`.

    A container bridge has the same address on every node and does not reach other Sparks. WiFi and tunnels connect the
    nodes at a hundredth of the speed; this is a warning.
    """
    interface = context.facts[name].interface(link.interface)
    slow = "WiFi" if interface is not None and interface.wireless else ""
    slow = slow or ("a tunnel" if link.interface.startswith(TUNNEL_INTERFACES) else "")
    if slow or link.interface.startswith(CONTAINER_INTERFACES):
        yield Seen(
            f"{link.interface} of {name} is {slow or 'not connected to another node'}",
            f"{link.address} in {link.subnet}, from interconnect in the inventory",
            severity="warning" if slow else "error",
        )
