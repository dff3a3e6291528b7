"""Checks across keys: consistency of an inventory, its files, and whether the playbook fits it."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from pathlib import Path

from sparkcluster import engines
from sparkcluster.errors import Problem
from sparkcluster.report import count
from sparkcluster.spec import check_playbook, models, powers, variables
from sparkcluster.spec.document import Document, KeyPath, shown
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import Playbook
from sparkcluster.spec.secret_patterns import holds_secret
from sparkcluster.suggest import did_you_mean

playbook = check_playbook.check
_SHOWN = "looks like a secret, but is shown in plans and logs"


def inventory(written: Inventory, document: Document) -> list[Problem]:
    """Problems of an inventory whose single keys are valid."""
    checks = (_nodes, _groups, _api, _directories, _identities)
    found = [problem for check in checks for problem in check(written, document)]
    return [*found, *models.check(written, document)] if written.models else found


def together(
    written: Inventory, served: Playbook, document: Document, playbook_document: Document, *, starts: bool
) -> list[Problem]:
    """Problems of a playbook on the nodes of this inventory; with ``starts``, also missing permissions.

    ``document`` is the inventory.
    """
    found = [
        problem
        for index, node in enumerate(written.nodes)
        for problem in check_playbook.environment(node.env, served.engine, ("nodes", index, "env"), document)
    ]
    found += [*_image(written, served, playbook_document), *_size(written, served, document)]
    found += _key(written, served, document)
    return [*found, *_powers(written, served, playbook_document)] if starts else found


def _nodes(written: Inventory, document: Document) -> Iterator[Problem]:
    """Nodes that are the same machine, or have the same name."""
    hosts: dict[str, str] = {}
    labels: set[str] = set()
    local = [node for node in written.nodes if node.connection == "local"]
    for index, node in enumerate(written.nodes):
        host = _canonical(node.host)
        if host in hosts:
            message = f"{node.label} and {hosts[host]} have the same address, {node.host}"
            yield document.problem(("nodes", index, "host"), message, "give each node its own address")
        elif node.label in labels:
            path = ("nodes", index, "name" if node.name else "host")
            yield document.problem(path, f"duplicate node name {node.label}", "give each node its own name")
        elif node in local[1:]:
            message = f"only one node can be local, and {local[0].label} already is"
            yield document.problem(("nodes", index, "connection"), message, "write connection: ssh")
        hosts.setdefault(host, node.label)
        labels.add(node.label)


def _canonical(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.rstrip(".").lower()


def _groups(written: Inventory, document: Document) -> Iterator[Problem]:
    labels = [node.label for node in written.nodes]
    taken: dict[str, str] = {}
    for index, group in enumerate(written.groups):
        if group.name in [each.name for each in written.groups[:index]]:
            yield document.problem(("groups", index, "name"), f"duplicate group name {group.name}", "rename one")
        for position, name in enumerate(group.nodes):
            path = ("groups", index, "nodes", position)
            if name not in labels:
                hint = did_you_mean(name, labels, f"nodes: {', '.join(labels)}")
                yield document.problem(path, f"no node named {shown(name)}", hint)
            elif name in taken:
                message = f"{name} is already in group {taken[name]}"
                yield document.problem(path, message, "list each node in one group only")
            taken.setdefault(name, group.name)
    ungrouped = [label for label in labels if label not in taken]
    if written.groups and ungrouped and not written.models:
        message = f"in no group: {', '.join(ungrouped)}"
        yield document.problem(("groups",), message, "add them to a group, or remove them from nodes", key=True)


def _api(written: Inventory, document: Document) -> Iterator[Problem]:
    host = written.api.host
    if len(written.groups) > 1 and host not in {"management", "interconnect"}:
        address = ipaddress.ip_address(host)
        if not (address.is_loopback or address.is_unspecified):
            message = f"{len(written.groups)} heads cannot share the address {host}"
            yield document.problem(("api", "host"), message, "write host: management, the LAN address of each head")


def _directories(written: Inventory, document: Document) -> Iterator[Problem]:
    """Forbidden paths among sparkcluster's directories and permitted mounts."""
    found: list[tuple[KeyPath, str | None]] = [
        ((key,), powers.never(getattr(written, key))) for key in ("state_dir", "hf_home")
    ]
    for index, entry in enumerate(written.permit.mounts):
        found.append((("permit", "mounts", index), powers.never(entry.removesuffix(powers.WRITABLE), written)))
    for path, refused in found:
        if refused:
            yield document.problem(path, refused, "use a directory with no other purpose, such as ~/data")


def _identities(written: Inventory, document: Document) -> Iterator[Problem]:
    """Identity files that are not private keys or cannot be read."""
    keys: list[tuple[KeyPath, str | None]] = [(("ssh", "identity"), written.ssh.identity)]
    keys += [(("nodes", at, "ssh", "identity"), node.ssh.identity) for at, node in enumerate(written.nodes) if node.ssh]
    for path, identity in keys:
        if identity is not None:
            from sparkcluster import private_key  # noqa: PLC0415 - few inventories name a key

            found = private_key.wrong(identity)
            if found:
                yield document.problem(path, f"{shown(identity, 300)[1:-1]} {found[0]}", found[1])


def here(written: Inventory, document: Document, directory: Path) -> Iterator[Problem]:
    """Problems of settings that this machine uses: the API key, and commands, relative to ``directory``."""
    key = written.api.key
    if key and key.env and variables.ACCOUNTS.fullmatch(key.env):
        message = f"{key.env} gives access to another account, and the model's container would receive it"
        hint = "write env: SPARK_API_KEY, or run: "
        hint += f"sparkcluster key INVENTORY --file {powers.KEYS}/{written.cluster}.key"
        yield document.problem(("api", "key", "env"), message, hint)
    if any(map(holds_secret, written.on_event or ())):
        hint = "put it in a script on the nodes that reads the secret from a file"
        yield document.problem(("on_event",), _SHOWN, hint)
    for index, command in enumerate(written.after_ready):
        path = directory / command[0]
        if any(map(holds_secret, command)):
            hint = "put it in a script that reads the secret from the environment, which it shares with sparkcluster"
            yield document.problem(("after_ready", index), _SHOWN, hint)
        elif "/" in command[0] and not (path.is_file() and os.access(path, os.X_OK)):
            message = f"{shown(str(path), 200)[1:-1]} is not an executable file"
            hint = "give its path relative to the inventory, and make it executable with chmod +x"
            yield document.problem(("after_ready", index), message, hint)


def _image(written: Inventory, served: Playbook, document: Document) -> Iterator[Problem]:
    if written.runtime.kind == "docker" and served.image is None:
        message = "is required: the inventory's runtime is docker"
        yield document.problem(("image",), message, "add image: …, or runtime: {kind: process} to the inventory")
    if written.runtime.kind == "process" and served.build is not None:
        message = "builds an image, but the inventory's runtime is process"
        yield document.problem(("build",), message, "remove build, or write runtime: {kind: docker} there", key=True)


def _key(written: Inventory, served: Playbook, document: Document) -> Iterator[Problem]:
    """A key for an engine without API keys; allowed behind a gateway, which requires the key from clients."""
    engine = engines.engine(served.engine)
    if written.api.key and engine.api_key is None and written.gateway is None:
        message = f"{engine.title} takes no API key: everyone who reaches its port could use the model"
        hint = "write models: and gateway: {port: 8000}, whose clients need the key; or use another engine"
        yield document.problem(("api", "key"), message, hint, key=True)


def _size(written: Inventory, served: Playbook, document: Document) -> Iterator[Problem]:
    """Groups whose size the playbook does not support; the problem is reported in the inventory."""
    sizes: list[tuple[KeyPath, str, int]] = [
        (("groups", index, "nodes"), f"group {group.name} has", len(group.nodes))
        for index, group in enumerate(written.groups)
    ]
    for path, where, nodes in sizes or [(("nodes",), "the inventory lists", len(written.nodes))]:
        if not served.serves_on(nodes):
            message = f"playbook {served.name} is for {group_sizes(served, nodes)}, but {where} {nodes}"
            hint = f"{_divided(written, served)}; other playbooks: sparkcluster playbooks --sparks {nodes}"
            yield document.problem(path, message, hint, key=True)


def _divided(written: Inventory, served: Playbook) -> str:
    """How to divide the nodes into groups of a supported size, for hints."""
    names = [node.label for node in written.nodes]
    sizes = [size for size in range(1, len(names)) if len(names) % size == 0 and served.serves_on(size)]
    if written.groups or not sizes:
        return "change nodes or groups to that size"
    size = sizes[-1]
    parts = (", ".join(names[at : at + size]) for at in range(0, len(names), size))
    groups = (f"{{name: r{number}, nodes: [{part}]}}" for number, part in enumerate(parts, start=1))
    return f"list only {count(size, 'node')}, or for replicas write groups: [{', '.join(groups)}]"


def group_sizes(served: Playbook, nodes: int) -> str:
    """The numbers of Sparks that the playbook supports, for messages; ``nodes`` is not supported."""
    least, most = served.nodes.min, served.nodes.max
    if served.ranks is not None and served.ranks != nodes:
        return count(served.ranks, "Spark")
    if served.nodes.allow(nodes):
        return f"multiples of {served.parts} Sparks"
    return f"at least {least}{'' if most is None else f' and at most {most}'} Sparks"


def _powers(written: Inventory, served: Playbook, document: Document) -> Iterator[Problem]:
    found = powers.of(served, written)
    for power in found:
        if power.refused:
            yield document.problem(power.path, power.refused, "give another directory, such as ~/data")
        elif power.permitted is False:
            permission = "a write permission" if power.kind == "write" else "a permission"
            message = f"{power.what} needs {permission} in the inventory"
            hint = f"if you trust the playbook, write in the inventory: {powers.permit(found, written)}"
            yield document.problem(power.path, message, hint)
