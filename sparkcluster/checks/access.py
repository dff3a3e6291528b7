"""Checks of who may reach what: the API without a key, Ray's job API, rails that are not wires between Sparks."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.facts.model import read
from sparkcluster.node.shared import CONTAINER_INTERFACES, TUNNEL_INTERFACES

# Where Ray's dashboard and job API listen unless told otherwise (docs.ray.io, "Configuring Ray: ports").
RAY_DASHBOARD_PORT = 8265
# Interfaces behind which there are containers and machines of this node alone.


@check(
    "NET-020",
    "The API asks for a key where others can reach it",
    stage="written",
    severity="warning",
    source="docs.vllm.ai, Security",
    remedy="api.key in the inventory, or api.host: 127.0.0.1",
)
def key(context: Context) -> Iterator[Seen]:
    """Whoever reaches the port may use the model, read its metrics and fill its queue.

    A warning where it listens on every address of the node, WiFi among them, or on one of the public internet; on
    one address of a private network it is told for information.
    """
    api = context.spec.inventory.api
    if api.key is not None or api.host == "interconnect":
        return
    wide = False
    if api.host != "management":
        address = ipaddress.ip_address(api.host)
        if address.is_loopback:
            return
        wide = address.is_unspecified or address.is_global
    yield Seen(
        None,
        "the API asks nobody for a key",
        f"api.host: {api.host}, port {api.port}",
        (
            "set api.key in the inventory, as `key: {env: SPARK_API_KEY}`",
            "export SPARK_API_KEY=$(openssl rand -hex 24)",
            "or set api.host in the inventory to 127.0.0.1, and reach it through SSH",
        ),
        severity="warning" if wide else "info",
    )


@check(
    "NET-021",
    "Ray's job API is not open to the network",
    needs=("listeners",),
    severity="warning",
    source="docs.ray.io, Security: whoever reaches the dashboard can run code; CVE-2023-48022",
    remedy="ray stop, or --include-dashboard=false",
)
def jobs(context: Context) -> Iterator[Seen]:
    """Whoever reaches it runs any command on the node, without a password.

    sparkcluster starts Ray without a dashboard. One that somebody else started listens on port 8265.
    """
    for name, facts in context.facts.items():
        for held in read(facts.listeners) or ():
            # An own process has a name that this user may know; Ray's are called ray or python.
            ours = held.process is None or held.process.startswith(("ray", "python"))
            if held.port == RAY_DASHBOARD_PORT and ours and not held.address.startswith(("127.", "::1")):
                yield Seen(
                    name,
                    f"a Ray dashboard of {name} listens to the network",
                    f"{held.process or 'a process of another user'} on {held.address}:{held.port}",
                    (
                        f"sudo ss -ltnp 'sport = :{held.port}'",
                        "ray stop, or start it with --include-dashboard=false",
                    ),
                )
                break


@check(
    "NET-022",
    "Rails are wires between the nodes",
    needs=("interfaces",),
    scope="interconnect",
    source="vllm#40991: interfaces have to be chosen per node; practitioners' reports on Gloo over docker0",
    remedy="name interfaces of the QSFP ports under interconnect, or leave it at auto",
)
def wires(context: Context) -> Iterator[Seen]:
    """Ranks wait for one another until Gloo or NCCL gives up: `DistStoreError 1/2 clients joined`.

    A bridge of containers has the same address on every node and no other Spark behind it. WiFi and tunnels connect
    them, at a hundredth of the speed: a warning.
    """
    for member, link in context.links():
        found = context.facts[member.name].interfaces
        interface = next((one for one in read(found) or () if one.name == link.interface), None)
        slow = "WiFi" if interface is not None and interface.wireless else ""
        slow = slow or ("a tunnel" if link.interface.startswith(TUNNEL_INTERFACES) else "")
        if slow or link.interface.startswith(CONTAINER_INTERFACES):
            yield Seen(
                member.name,
                f"{link.interface} of {member.name} is {slow or 'no way to another node'}",
                f"{link.address} in {link.subnet}, as interconnect in the inventory has it",
                ("set interconnect: auto in the inventory", "ip -br addr"),
                severity="warning" if slow else "error",
            )
