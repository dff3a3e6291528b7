"""Environment of each rank, from the interfaces, HCAs and addresses of its node."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from sparkcluster import engines
from sparkcluster.spec import Spec, variables
from sparkcluster.topology.model import Group, Member


def build(
    spec: Spec,
    group: Group,
    member: Member,
    *,
    hf_home: str,
    home: str | None = None,
    baked: Iterable[str] = (),
) -> dict[str, str]:
    """Variables of the rank of ``member``, without secrets; ``env`` of the playbook, then of the node, override them.

    ``hf_home`` is the Hugging Face cache for the engine, ``home`` the home of a user other than root, and ``baked`` are
    names of variables set by the image.
    """
    env = {} if home is None else {"HOME": home}
    env |= {
        "HF_HOME": hf_home,
        "HF_HUB_OFFLINE": "1",
        # On unified memory, Ray's monitor would kill healthy ranks.
        "RAY_memory_monitor_refresh_ms": "0",
        **engines.engine(spec.playbook.engine).environment(member, spec.playbook),
        **_sockets(member),
    }
    if len(group.members) > 1:
        env |= _rdma(group, member, frozenset(baked)) if member.hcas else _no_rdma(member)
    return env | spec.playbook.env | spec.inventory.node_env(member.name)


def node_local(engine: str, envs: Mapping[str, Mapping[str, str]], secrets: Mapping[str, Iterable[str]]) -> list[str]:
    """Names of variables that Ray must not copy from the head's environment to its workers.

    These are variables that always differ between nodes, and variables whose values differ in this group or that a node
    lacks: a variable that is deliberately unset on a worker must not get the head's value. ``envs`` and ``secrets``
    (names of secret variables) are by node of one group.
    """
    names = set(variables.per_node(engine) | variables.LAUNCHER)
    every = {name for env in envs.values() for name in env}
    names |= {name for name in every if len({env.get(name) for env in envs.values()}) > 1}
    by_node = [frozenset(names) for names in secrets.values()]
    names |= frozenset[str]().union(*by_node) - by_node[0].intersection(*by_node)
    return sorted(names)


def address_range(addresses: Iterable[str]) -> str | None:
    """The smallest network that contains all ``addresses`` (with prefix), or None if only 0.0.0.0/0 does.

    ``NCCL_IB_ADDR_RANGE`` takes a single network: NCCL reads one address and prefix (``envIbAddrRange`` in its net_ib
    sources) and would ignore the rest of a list.
    """
    networks = [ipaddress.IPv4Network(address, strict=False) for address in addresses]
    common = networks[0]
    while common.prefixlen and not all(network.subnet_of(common) for network in networks):
        common = common.supernet()
    return str(common) if common.prefixlen else None


def _sockets(member: Member) -> dict[str, str]:
    """Interfaces for sockets; always set, to override values in images.

    NCCL matches prefixes unless the list begins with ``=``; Gloo and TensorPipe take the bare name.
    """
    return {
        "GLOO_SOCKET_IFNAME": member.interface,
        "NCCL_SOCKET_IFNAME": f"={member.interface}",
        "TP_SOCKET_IFNAME": member.interface,
    }


def _rdma(group: Group, member: Member, baked: frozenset[str]) -> dict[str, str]:
    env = {
        "NCCL_IB_DISABLE": "0",
        "NCCL_IB_HCA": "=" + ",".join(member.hcas),
        "NCCL_IB_ROCE_VERSION_NUM": "2",
        "NCCL_IB_TIMEOUT": "22",
        "NCCL_NET_PLUGIN": "none",
        "UCX_NET_DEVICES": ",".join(f"{hca}:1" for hca in member.hcas),
    }
    if member.gid_index is not None:
        env["NCCL_IB_GID_INDEX"] = str(member.gid_index)
    else:
        # HCAs may need different indices: NCCL finds each by address family and range.
        env["NCCL_IB_ADDR_FAMILY"] = "AF_INET"
        within = address_range(link.subnet for link in member.links if link.hca)
        if within is not None:
            env["NCCL_IB_ADDR_RANGE"] = within
        if "NCCL_IB_GID_INDEX" in baked:
            env["NCCL_IB_GID_INDEX"] = "-1"  # NCCL's default: automatic
    if group.kind == "ring":
        env["NCCL_IB_SUBNET_AWARE_ROUTING"] = "1"
        env["NCCL_IB_MERGE_NICS"] = "0"
        if len(group.prefix_lengths) == 1 and group.prefix_lengths != (24,):  # NCCL's default
            env["NCCL_IB_SUBNET_PREFIX_LEN"] = str(group.prefix_lengths[0])
    return env


def _no_rdma(member: Member) -> dict[str, str]:
    """Use sockets explicitly; otherwise NCCL would search for HCAs and fall back silently."""
    return {"NCCL_IB_DISABLE": "1", "NCCL_NET_PLUGIN": "none", "UCX_NET_DEVICES": member.interface}
