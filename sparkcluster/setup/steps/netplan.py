"""``netplan``: an address for every cabled twin."""

from sparkcluster.facts.base import read
from sparkcluster.facts.survey import Survey
from sparkcluster.setup.step import Change, Step, Wanted, command, described
from sparkcluster.topology.candidates import order_on_bus
from sparkcluster.topology.netplan import MTU, NETPLAN


def needed(survey: Survey, wanted: Wanted) -> Change | None:
    """Describe the difference found by ``rails.proposal``, which needs all nodes."""
    if wanted.netplan is None:
        return None
    addresses = {name: str(address) for name, address in wanted.addresses.items()}
    found = []
    for each in sorted(read(survey.interfaces) or (), key=order_on_bus):
        if each.name in addresses and addresses[each.name] not in each.addresses:
            found.append(f"{each.name} has {', '.join(each.addresses) or 'no address'}")
        elif each.name in addresses and each.mtu != MTU:
            found.append(f"{each.name} has MTU {each.mtu}")
    return Change(
        "; ".join(found) or described(survey, NETPLAN),
        ", ".join(f"{name} {address}" for name, address in addresses.items()) + f", MTU {MTU}",
        (command("set_netplan", *(f"{name}={each}" for name, each in addresses.items()), text=wanted.netplan),),
    )


STEP = Step(
    "netplan",
    f"an address and MTU {MTU} for each twin, one subnet per twin, in {NETPLAN}",
    "RDMA and NCCL need an address on every twin (NVIDIA DGX Spark, connect two Sparks)",
    needed,
    disruptive=True,
    joint=True,
)
