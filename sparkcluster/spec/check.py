"""Checks across keys: whether an inventory is consistent, its files are there, and its playbook fits it."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from sparkcluster.errors import Problem
from sparkcluster.spec import check_playbook, powers
from sparkcluster.spec.document import Document, KeyPath, shown
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import Playbook
from sparkcluster.spec.secret_patterns import holds_secret
from sparkcluster.suggest import did_you_mean

playbook = check_playbook.check


def inventory(written: Inventory, document: Document) -> list[Problem]:
    """Problems of an inventory whose keys are each valid."""
    checks = (
        *(_hosts, _names, _local, _groups, _rails, _interfaces, _api, _directories, _runtime, _permit),
        _after_ready,
    )
    return [problem for check in checks for problem in check(written, document)]


def together(
    written: Inventory, served: Playbook, document: Document, playbook_document: Document, *, starts: bool
) -> list[Problem]:
    """Problems of a playbook on the nodes of this inventory; if it ``starts``, also what it may not have.

    ``document`` is the inventory's.
    """
    return [
        *_node_environment(written, served, document),
        *_image(written, served, playbook_document),
        *_size(written, served, document),
        *(_powers(written, served, playbook_document) if starts else ()),
    ]


def _hosts(written: Inventory, document: Document) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, node in enumerate(written.nodes):
        path = ("nodes", index, "host")
        bad = _no_host(node.host)
        if bad:
            yield document.problem(path, *bad)
            continue
        same = _canonical(node.host)
        if same in first:
            yield document.problem(
                path,
                f"{node.label} and {written.nodes[first[same]].label} have the same address, {node.host}",
                "give each node its own address",
            )
        first.setdefault(same, index)


def _no_host(host: str) -> tuple[str, str | None] | None:
    """What is wrong with a host that no resolver would take."""
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            name, _, port = host.partition(":")
            if port.isdecimal() and name:
                return (
                    f"must be a name or an address without a port, is {host}",
                    f"write host: {name}, and ssh: {{port: {port}}}",
                )
            return f"must be an address, is {host}", None
    elif re.fullmatch(r"[0-9.]+", host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            return f"must be an address, is {host}", "an IPv4 address has four numbers from 0 to 255"
    return None


def _canonical(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.rstrip(".").lower()
        return "127.0.0.1" if name == "localhost" else name
    return "127.0.0.1" if address.is_loopback and address.version == 6 else str(address)


def _names(written: Inventory, document: Document) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, node in enumerate(written.nodes):
        if node.label in first and _canonical(node.host) != _canonical(written.nodes[first[node.label]].host):
            path = ("nodes", index, "name" if node.name else "host")
            where = document.values.get(("nodes", first[node.label]))
            line = f", first in line {where.line}" if where else ""
            yield document.problem(path, f"duplicate node name {node.label}{line}", "give each node its own name")
        first.setdefault(node.label, index)


def _local(written: Inventory, document: Document) -> Iterator[Problem]:
    local = [index for index, node in enumerate(written.nodes) if node.connection == "local"]
    for index in local[1:]:
        other = written.nodes[local[0]].label
        message = f"only one node can be this machine, and {other} is local as well"
        yield document.problem(("nodes", index, "connection"), message, "write connection: ssh")


def _groups(written: Inventory, document: Document) -> Iterator[Problem]:
    labels = [node.label for node in written.nodes]
    taken: dict[str, str] = {}
    for index, name in check_playbook.repeated(group.name for group in written.groups):
        yield document.problem(("groups", index, "name"), f"duplicate group name {name}", "rename one")
    for index, group in enumerate(written.groups):
        for position, name in enumerate(group.nodes):
            path = ("groups", index, "nodes", position)
            if name not in labels:
                hint = did_you_mean(name, labels, f"nodes: {_some(labels)}")
                yield document.problem(path, f"no node named {shown(name)}", hint)
            elif name in taken:
                where = "twice in this group" if taken[name] == group.name else f"already in group {taken[name]}"
                yield document.problem(path, f"{name} is {where}", "a node has one rank of one group")
            else:
                taken[name] = group.name
    ungrouped = [label for label in labels if label not in taken]
    if written.groups and ungrouped:
        message = f"in no group: {_some(ungrouped)}"
        yield document.problem(("groups",), message, "add them to a group, or remove them from nodes", key=True)


def _some(names: Iterable[str], limit: int = 8) -> str:
    all_names = list(names)
    more = f" and {len(all_names) - limit} more" if len(all_names) > limit else ""
    return ", ".join(all_names[:limit]) + more


def _rails(written: Inventory, document: Document) -> Iterator[Problem]:
    if isinstance(written.interconnect, str):
        return
    networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
    for index, rail in enumerate(written.interconnect.rails):
        path = ("interconnect", "rails", index)
        try:
            network = ipaddress.ip_network(rail, strict=False)
        except ValueError:
            yield document.problem(path, f"must be a subnet, is {shown(rail)}", "write it as 192.168.177.0/24")
            continue
        if str(network) != rail or network.prefixlen == network.max_prefixlen:
            from sparkcluster.spec.hints import subnet_of  # noqa: PLC0415 - for wrong input alone

            yield document.problem(path, f"must be a subnet, is {shown(rail)}", f"write {subnet_of(rail)}")
        if network.prefixlen == network.max_prefixlen:
            continue
        for other in networks:
            if other.overlaps(network):
                message = f"{network} overlaps {other}: twins in one subnet hang NCCL or halve its speed"
                yield document.problem(path, message, "give every rail its own subnet")
        networks.append(network)


def _interfaces(written: Inventory, document: Document) -> Iterator[Problem]:
    for index, node in enumerate(written.nodes):
        if node.interconnect is None:
            continue
        for key in ("interfaces", "hcas"):
            for position, name in check_playbook.repeated(getattr(node.interconnect, key)):
                yield document.problem(("nodes", index, "interconnect", key, position), f"duplicate {name}")
        if node.interconnect.hcas and len(node.interconnect.hcas) != len(node.interconnect.interfaces):
            message = "must list one RDMA device for each interface, in the same order"
            yield document.problem(
                ("nodes", index, "interconnect", "hcas"),
                message,
                "remove hcas: they are found from the interfaces",
            )


def _api(written: Inventory, document: Document) -> Iterator[Problem]:
    host = written.api.host
    if host in {"management", "interconnect"}:
        return
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        yield document.problem(
            ("api", "host"), f"must be an address, is {shown(host)}", "write 127.0.0.1, or management"
        )
        return
    if len(written.groups) > 1 and not (address.is_loopback or address.is_unspecified):
        message = f"{host} cannot be the address of {len(written.groups)} heads"
        yield document.problem(("api", "host"), message, "write management: each head's own address")


def _directories(written: Inventory, document: Document) -> Iterator[Problem]:
    for key in ("state_dir", "hf_home"):
        path = powers.normal(getattr(written, key))
        if powers.never(path):
            yield document.problem(
                (key,),
                f"{path} is a system directory",
                "use a directory for sparkcluster alone, such as ~/sparkcluster",
            )


def _runtime(written: Inventory, document: Document) -> Iterator[Problem]:
    if written.runtime.kind == "docker" and written.runtime.python is not None:
        message = "applies to runtime process only; a container runs the image's Python"
        yield document.problem(("runtime", "python"), message, "remove it, or write kind: process", key=True)


def _image(written: Inventory, served: Playbook, document: Document) -> Iterator[Problem]:
    if written.runtime.kind == "docker" and served.image is None:
        message = "is required: the inventory's runtime is docker"
        yield document.problem(("image",), message, "add image: …, or runtime: {kind: process} to the inventory")
    if written.runtime.kind == "process" and served.build is not None:
        message = "makes an image, and the inventory has runtime process, which runs none"
        yield document.problem(("build",), message, "remove it, or use runtime docker", key=True)


def _node_environment(written: Inventory, served: Playbook, document: Document) -> Iterator[Problem]:
    for index, node in enumerate(written.nodes):
        yield from check_playbook.environment(node.env, served.engine, ("nodes", index, "env"), document)


def _size(written: Inventory, served: Playbook, document: Document) -> Iterator[Problem]:
    """The playbook is for another number of Sparks than the inventory lists, which is what can be changed."""
    labels = [node.label for node in written.nodes]
    groups: list[tuple[KeyPath, str, list[str]]] = [
        (("groups", index, "nodes"), f"group {group.name} has", group.nodes)
        for index, group in enumerate(written.groups)
    ]
    for path, where, members in groups or [(("nodes",), "the inventory lists", labels)]:
        nodes = len(members)
        if not served.serves_on(nodes):
            size, wanted = _wanted(served, nodes)
            hint = f"{_resize(members, size, grouped=bool(groups))}; sparkcluster playbooks --sparks {nodes}"
            message = f"playbook {served.name} is for {wanted}, and {where} {nodes}"
            yield document.problem(path, message, f"{hint} lists what {_sparks(nodes)} can serve", key=True)


def _wanted(served: Playbook, nodes: int) -> tuple[int, str]:
    """A number of Sparks near ``nodes`` that the playbook serves on, and which it does in words."""
    bounds, parts, ranks = served.nodes, served.parts, served.ranks
    if ranks is not None and ranks != nodes:
        product = f" (tensor_parallel {served.tensor_parallel} by {parts})" if parts > 1 else ""
        return ranks, f"{_sparks(ranks)}{product}"
    if nodes < bounds.min:
        return bounds.min, f"at least {_sparks(bounds.min)}"
    if bounds.max is not None and nodes > bounds.max:
        return bounds.max, f"at most {_sparks(bounds.max)}"
    return max(parts, nodes - nodes % parts), f"a multiple of {parts} Sparks"


def _resize(members: list[str], size: int, *, grouped: bool) -> str:
    """What to change in the inventory so that ``size`` of ``members`` are a group."""
    nodes = len(members)
    if nodes < size:
        return f"list {_number(size - nodes)} more"
    remove = f"remove {_number(nodes - size)} of them"
    copies = nodes // size
    if nodes % size or grouped or copies > len("abcd"):
        return f"{remove}, or make groups of {size}" if nodes % size == 0 else remove
    groups = (
        f"{{name: {name}, nodes: [{', '.join(map(_plain, members[size * index : size * (index + 1)]))}]}}"
        for index, name in enumerate("abcd"[:copies])
    )
    return f"{remove}, or write groups: [{', '.join(groups)}]"


def _plain(label: str) -> str:
    """``label`` in a list of YAML."""
    return label if re.fullmatch(r"[A-Za-z][\w.-]*|\d+(\.\d+){3}", label, re.ASCII) else json.dumps(label)


def _sparks(number: int) -> str:
    return f"{_number(number)} Spark{'s' if number > 1 else ''}"


def _number(number: int) -> str:
    return "one" if number == 1 else str(number)


def _permit(written: Inventory, document: Document) -> Iterator[Problem]:
    for index, entry in enumerate(written.permit.mounts):
        refused = powers.never(entry.removesuffix(powers.WRITABLE), written)
        if refused:
            yield document.problem(("permit", "mounts", index), refused, "permit the one directory that is needed")


def _after_ready(written: Inventory, document: Document) -> Iterator[Problem]:
    for index, command in enumerate(written.after_ready):
        if any(holds_secret(word) for word in command):
            message = "looks like it holds a secret, and it is shown in plans and logs"
            hint = "put it in a script that reads the secret from its environment, which is that of sparkcluster"
            yield document.problem(("after_ready", index), message, hint)


def _powers(written: Inventory, served: Playbook, document: Document) -> Iterator[Problem]:
    found = powers.of(served, written)
    for power in found:
        if power.refused:
            yield document.problem(power.path, power.refused, "give another directory, such as ~/data")
        elif power.permitted is False:
            to_be_written = ", to be written" if power.kind == "write" else ""
            message = f"{power.what} needs a permission in the inventory{to_be_written}"
            hint = f"if you trust the playbook with it, write in the inventory: {powers.permit(found, written)}"
            yield document.problem(power.path, message, hint)


def identities(inventory: Inventory, document: Document) -> list[Problem]:
    """Problems of files that are not private keys, or cannot be read."""
    out = []
    written: list[tuple[KeyPath, str | None]] = [(("ssh", "identity"), inventory.ssh.identity)]
    written += [
        (("nodes", i, "ssh", "identity"), node.ssh.identity) for i, node in enumerate(inventory.nodes) if node.ssh
    ]
    for path, identity in written:
        if identity is None:
            continue
        from sparkcluster import private_key  # noqa: PLC0415 - few inventories name a key

        found = private_key.wrong(identity)
        if found:
            out.append(document.problem(path, f"{shown(identity, 300)[1:-1]} {found[0]}", found[1]))
    return out


def programs(inventory: Inventory, document: Document, directory: Path) -> list[Problem]:
    """Problems of ``after_ready``: paths, from ``directory``, that cannot be executed."""
    out = []
    for index, (program, *_) in enumerate(inventory.after_ready):
        path = directory / program
        if "/" in program and not (path.is_file() and os.access(path, os.X_OK)):
            file = shown(str(path), 200)[1:-1]
            message, hint = (
                f"there is no file {file}",
                "give its path from the inventory's directory, or a name on PATH",
            )
            if path.is_file():
                message, hint = f"{file} is not executable", f"chmod +x {file}"
            out.append(document.problem(("after_ready", index), message, hint))
    return out
