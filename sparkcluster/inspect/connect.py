"""What a client needs to use a group's API: of what serves, else of inventory and playbook."""

from __future__ import annotations

import dataclasses
import ipaddress
import shlex
from typing import Any

from pydantic import ValidationError

from sparkcluster import engines
from sparkcluster.endpoint.clients import CLIENTS, notes, warnings
from sparkcluster.endpoint.connection import Connection, Key
from sparkcluster.errors import UsageError
from sparkcluster.facts.collect import collect_facts
from sparkcluster.hosts.connect import Address, ssh_target
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.resolve import SshSettings, SshTarget
from sparkcluster.inspect import state
from sparkcluster.plan.release_record import cluster_ranks, recorded_groups, recorded_release
from sparkcluster.runtime import secrets
from sparkcluster.spec import Inventory, Spec
from sparkcluster.spec.inventory import ONLY_GROUP, Node
from sparkcluster.spec.playbook import Playbook

# For every node: who configures a client does not wait for a Spark that is switched off.
ANSWER_S = 5.0
LOOPBACK = "127.0.0.1"
UNKNOWN = "HEAD-ADDRESS"


@dataclasses.dataclass(frozen=True, slots=True)
class Serving:
    """What a client is told about.

    Attributes:
        spec: with the playbook that serves; that of the inventory where nothing does, or no node answers.
        release: number of the release that serves; None likewise.
        notes: what to say about it.
    """

    spec: Spec
    release: int | None = None
    notes: tuple[str, ...] = ()


def serving(fleet: Fleet, spec: Spec, group: str | None = None) -> Serving:
    """What serves in ``group``, by default the first of the inventory.

    Raises:
        UsageError: there is no such group.
    """
    inventory = spec.inventory
    name, _ = _group(inventory, group)
    collected = collect_facts(fleet, spec, limit_s=ANSWER_S)
    if collected.errors and not collected.facts:
        return Serving(spec, notes=("no node answered: this is what the inventory says, not what was seen to serve",))
    latest = recorded_release(inventory, collected.facts)
    present = state.present_record(cluster_ranks(inventory.cluster, collected.facts), latest)
    found = recorded_groups(present).get(name)
    if found is None:
        down = f"{inventory.cluster} does not serve now: this is what the inventory says"
        return Serving(spec, notes=(down,) if collected.facts else ())
    try:
        playbook = Playbook.model_validate(found.playbook)
        engines.engine(playbook.engine).api_features(playbook)
    except (ValidationError, UsageError):  # of another version of sparkcluster
        unread = f"what release {found.release} has recorded cannot be read: this is what the inventory says"
        return Serving(spec, notes=(unread,))
    now, then = (f"{each.model_name} of the playbook {each.name}" for each in (playbook, spec.playbook))
    notes = [f"release {found.release} serves {now}; the inventory has {then}"] if now != then else []
    if warning := secrets.key_warning(found.secrets, spec, playbook.engine):
        notes.append(warning)
    return Serving(dataclasses.replace(spec, playbook=playbook), found.release, tuple(notes))


def connection(spec: Spec, group: str | None = None, *, key: str | None = None) -> Connection:
    """How the user's machine reaches the API of ``group``, by default the first.

    ``key`` is the API key itself, where it is to be shown.

    Raises:
        UsageError: there is no such group, or ssh_config cannot be used.
    """
    inventory, playbook = spec.inventory, spec.playbook
    chosen, head = _group(inventory, group)
    url, tunnel, known = _reached(inventory, head)
    others = [
        _reached(inventory, _group(inventory, each.name)[1])
        for each in inventory.groups
        if group is None and tunnel is None and each.name != chosen
    ]
    source = inventory.api.key
    return Connection(
        cluster=inventory.cluster,
        url=url,
        model=playbook.model_name,
        aliases=tuple(playbook.aliases),
        key=None if source is None else Key(source.env, source.file, key),
        features=engines.engine(playbook.engine).api_features(playbook),
        tunnel=tunnel,
        known=known,
        request=playbook.request,
        others=tuple(other for other, through, reached in others if reached and through is None),
    )


def document(found: Connection, client: str | None = None, release: int | None = None) -> dict[str, Any]:
    """The document of ``--json``; ``client`` is the name of the one that is connected, ``release`` what serves."""
    chosen = None
    if client is not None:
        what = CLIENTS[client]
        chosen = {
            "name": client,
            "title": what.title,
            "where": what.where,
            "block": what.build(found),
            "warnings": warnings(what, found),
            "notes": notes(what, found),
            "source": what.source,
        }
    return {
        "cluster": found.cluster,
        "release": release,
        "endpoint": found.url if found.known else None,
        "others": list(found.others),
        "tunnel": found.tunnel,
        "model": found.model,
        "key": None if found.key is None else {"env": found.key.env, "file": found.key.file},
        "context": found.features.context,
        "tools": found.features.tools,
        "reasoning": found.features.reasoning,
        "messages": found.features.messages,
        "request": found.request.body,
        "client": chosen,
        "clients": [{"name": name, "title": each.title, "about": each.about} for name, each in CLIENTS.items()],
    }


def _group(inventory: Inventory, name: str | None) -> tuple[str, Node]:
    """The name of a group, by default of the first, and its head."""
    groups = {each.name: each.nodes for each in inventory.groups}
    groups = groups or {ONLY_GROUP: [node.label for node in inventory.nodes]}
    name = name or next(iter(groups))
    if name not in groups:
        raise UsageError(f"there is no group {name}", hint=f"its groups: {', '.join(groups)}")
    return name, next(node for node in inventory.nodes if node.label == groups[name][0])


def _reached(inventory: Inventory, head: Node) -> tuple[str, str | None, bool]:
    """URL of the API on ``head``, the command of a tunnel to it where one is needed, and whether the address is known.

    Where the API listens on the head's management address, that is the one by which the head is reached.
    """
    api, ssh = inventory.api, inventory.node_ssh(head)
    target = ssh_target(Address(head.host, head.connection, SshSettings(**ssh.model_dump())))
    host: str | None = target.host if target else None if _loopback(head.host) else head.host
    if api.host == "interconnect":
        host = None
    elif api.host != "management":
        host = (host or LOOPBACK) if ipaddress.ip_address(api.host).is_unspecified else api.host
    if host is None:
        return _url(UNKNOWN, api.port), None, False
    if target is not None and (_loopback(host) or _indirect(target)):
        return _url(LOOPBACK, api.port), _tunnel(inventory, head, f"{_literal(host)}:{api.port}"), True
    return _url(host, api.port), None, True


def _indirect(target: SshTarget) -> bool:
    return target.jump is not None or target.proxy_command is not None


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _literal(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _url(host: str, port: int) -> str:
    return f"http://{_literal(host)}:{port}/v1"


def _tunnel(inventory: Inventory, head: Node, to: str) -> str:
    """``ssh`` with the settings of the inventory; ssh_config has the others."""
    ssh = inventory.node_ssh(head)
    flags = {"-p": ssh.port, "-J": ssh.jump, "-i": ssh.identity}
    words = ["ssh", "-N", "-L", f"{inventory.api.port}:{to}"]
    words += [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
    return shlex.join([*words, f"{ssh.user}@{head.host}" if ssh.user else head.host])
