"""``netplan``: an address for every cabled twin."""

from sparkcluster.facts.base import read
from sparkcluster.facts.survey import Survey
from sparkcluster.setup.step import Change, Step, Wanted, command, described, is_written
from sparkcluster.topology.netplan import MTU, NETPLAN


def look(survey: Survey, wanted: Wanted) -> Change | None:
    """The file, and the addresses and MTUs that are in effect."""
    if wanted.netplan is None:
        return None
    addresses = {name: str(address) for name, address in wanted.addresses.items()}
    interfaces = {each.name: each for each in read(survey.interfaces) or ()}
    missing = []
    for name, address in addresses.items():
        interface = interfaces.get(name)
        if interface is None:
            missing.append(f"there is no interface {name}")
        elif address not in interface.addresses:
            missing.append(f"{name} has {', '.join(interface.addresses) or 'no address'}")
        elif interface.mtu != MTU:
            missing.append(f"{name} has MTU {interface.mtu}")
    if not missing and is_written(survey, NETPLAN, wanted.netplan, 0o600):
        return None
    return Change(
        "; ".join(missing) or described(survey, NETPLAN),
        ", ".join(f"{name} {address}" for name, address in addresses.items()) + f", MTU {MTU}",
        (command("set_netplan", *(f"{name}={each}" for name, each in addresses.items()), text=wanted.netplan),),
    )


STEP = Step(
    "netplan",
    f"an address for each twin in a subnet of its own, with MTU {MTU}, in {NETPLAN}",
    "RDMA and NCCL use all twins of a cable by their addresses (NVIDIA DGX Spark, connect two Sparks)",
    look,
    disruptive=True,
    joint=True,
)
