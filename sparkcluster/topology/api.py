"""Address that the API of a group listens on, and its URL."""

from __future__ import annotations

import ipaddress

from sparkcluster.errors import PlanError
from sparkcluster.facts.model import Facts
from sparkcluster.spec.inventory import Api, Node
from sparkcluster.topology import candidates
from sparkcluster.topology.model import Member


def resolve(api: Api, head: Node, facts: Facts, member: Member) -> tuple[str, str]:
    """Address to listen on and URL, for the group whose head is ``head``.

    ``management`` is the address of the head in the inventory if the head has it, else that of its management
    interface; ``interconnect`` is the address that the ranks use. The URL of an API that listens on all addresses has
    the management address.

    Raises:
        PlanError: ``management`` is set and the head has no such address.
    """
    if api.host == "interconnect":
        host = shown = member.address
    elif api.host == "management":
        host = shown = _management(head, facts, member) or ""
        if not host:
            raise PlanError(
                f"{head.label} has no management address for the API to listen on",
                node=head.label,
                step="topology",
                hint="set api.host in the inventory to an address",
            )
    else:
        host = shown = api.host
        if ipaddress.ip_address(host).is_unspecified:
            shown = _management(head, facts, member) or "127.0.0.1"
    literal = f"[{shown}]" if ":" in shown else shown
    return host, f"http://{literal}:{api.port}/v1"


def _management(head: Node, facts: Facts, member: Member) -> str | None:
    found = candidates.management(head, facts, {link.interface for link in member.links})
    return found[0].address if found else None
