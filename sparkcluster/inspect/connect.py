"""What a client needs to use the APIs of an inventory's models: from the running release, else from the inventory."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from sparkcluster import engines
from sparkcluster.endpoint.clients import CLIENTS, block, notes, warnings
from sparkcluster.endpoint.connection import Connection, Key
from sparkcluster.endpoint.find import loopback
from sparkcluster.errors import UsageError
from sparkcluster.hosts.connect import Address, ssh_target
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.resolve import SshSettings
from sparkcluster.inspect.cluster import see
from sparkcluster.inspect.state import is_unloaded
from sparkcluster.plan.release_record import RecordedGroup, recorded_groups
from sparkcluster.runtime import secrets
from sparkcluster.spec import Inventory, Spec, models
from sparkcluster.spec.inventory import ONLY_GROUP, Node, bracketed
from sparkcluster.spec.load import load
from sparkcluster.spec.playbook import Playbook

# For all nodes: configuring a client should not wait for a Spark that is switched off.
ANSWER_S = 5.0
LOOPBACK = "127.0.0.1"
UNKNOWN = "HEAD-ADDRESS"


def serving(fleet: Fleet, spec: Spec, group: str | None = None) -> tuple[Spec, int | None, list[str]]:
    """The spec and release that serve in ``group`` (default: the first of the inventory), and notes about it.

    If nothing readable serves, the inventory's spec.

    Raises:
        UsageError: there is no such group.
    """
    name, _ = _group(spec.inventory, group)
    view = see(fleet, spec, limit_s=ANSWER_S)
    why = "does not serve" if view.facts else "did not answer"
    notes = [f"{spec.inventory.cluster} {why}; these are the settings of the inventory"]
    groups = recorded_groups(view.newest.record) if view.newest and is_unloaded(view) else view.groups
    if (found := groups.get(name)) is None:
        return spec, None, notes
    if (served := as_recorded(spec, found)) is None:
        return spec, None, [f"release {found.release} cannot be read; these are the settings of the inventory"]
    now, then = (f"{each.model_name} of playbook {each.name}" for each in (served.playbook, spec.playbook))
    notes = [f"release {found.release} serves {now}; the inventory has {then}"] if now != then else []
    if warning := secrets.key_warning(found, spec):
        notes.append(warning)
    urls = [url for each in groups.values() for url in each.plan["endpoints"].values() if not loopback(url)]
    if spec.gateway_node and urls:
        notes.append(f"if {spec.gateway_node} is down, {served.playbook.model_name} is at {', '.join(urls)}")
    return served, found.release, notes


def as_recorded(spec: Spec, group: RecordedGroup | None) -> Spec | None:
    """``spec`` with the playbook of the running ``group``; None if it cannot be read, as of another version."""
    try:
        playbook = Playbook.model_validate(group and group.playbook)
        engines.engine(playbook.engine).api_features(playbook)
    except (ValidationError, UsageError):
        return None
    return dataclasses.replace(spec, playbook=playbook)


def connection(spec: Spec, group: str | None = None, *, key: str | None = None) -> Connection:
    """How the user's machine reaches the API of ``group`` (default: the first), or the gateway if there is one.

    ``key`` is the API key itself, if it is to be shown.

    Raises:
        UsageError: there is no such group, or ssh_config cannot be used.
    """
    inventory, playbook = spec.inventory, spec.playbook
    name, head = _group(inventory, group)
    if inventory.gateway is not None:
        written = load(spec.inventory_path, starts=False).inventory
        api = written.api.model_copy(update={"port": inventory.gateway.port})
        inventory = written.model_copy(update={"api": api, "cluster": inventory.cluster})
        head = next(node for node in written.nodes if node.label == models.gateway_node(written))
    url, tunnel = _reached(inventory, head)
    others = [_reached(inventory, _group(inventory, each.name)[1]) for each in inventory.groups if each.name != name]
    source = inventory.api.key
    return Connection(
        cluster=inventory.cluster,
        url=url or inventory.api.url(UNKNOWN),
        model=playbook.model_name,
        aliases=tuple(playbook.aliases),
        key=None if source is None else Key(source.env, source.file, key),
        features=engines.engine(playbook.engine).api_features(playbook),
        tunnel=tunnel,
        known=url is not None,
        request=playbook.request,
        kind=playbook.verifying.kind or "chat",
        name=spec.model,
        others=() if group or tunnel else tuple(other for other, through in others if other and not through),
    )


def together(specs: Sequence[Spec], connections: Sequence[Connection]) -> Connection:
    """The connection for a client with a single model (the largest chat model), with the others as its siblings.

    Size is that of the recorded weights; models without recorded size keep the inventory's order.
    """
    if len(specs) == 1:
        return connections[0]
    from sparkcluster.checks.disks import recorded_forecast  # noqa: PLC0415 - slow to import

    forecasts = [recorded_forecast(spec.playbook) or {} for spec in specs]
    sizes = [forecast.get("memory", {}).get("checkpoint_bytes") or 0 for forecast in forecasts]
    order = sorted(range(len(specs)), key=lambda at: -sizes[at] if connections[at].kind == "chat" else 1)
    first, *siblings = (connections[at] for at in order)
    return dataclasses.replace(first, siblings=tuple(siblings))


def document(
    found: Sequence[Connection],
    main: Connection,
    client: str | None = None,
    releases: Sequence[int | None] = (None,),
) -> dict[str, Any]:
    """The document of ``--json``: the first model's, with all models as ``models`` if there are several.

    ``client`` is the client to connect to ``main``; ``releases`` are the running releases.

    Raises:
        UsageError: the client needs a chat model, and there is none.
    """
    each = [_one(connection, release) for connection, release in zip(found, releases, strict=True)]
    several = [{"name": model.name, "kind": model.kind, **said} for model, said in zip(found, each, strict=True)]
    listed = [{"name": name, "title": each.title, "about": each.about} for name, each in CLIENTS.items()]
    return {
        **each[0],
        **({"models": several} if len(several) > 1 else {}),
        "client": None if client is None else _client(client, main),
        "clients": listed,
    }


def _client(name: str, found: Connection) -> dict[str, Any]:
    what = CLIENTS[name]
    if found.kind != "chat" and not (what.sends or what.watches):
        takes = ", ".join(name for name, known in CLIENTS.items() if known.sends)
        raise UsageError(
            f"{what.title} needs a chat model; {found.model} is a model for {found.kind}",
            hint=f"--client {takes.replace(', ', ' or ')} takes any kind of model",
        )
    return {
        "name": name,
        "title": what.title,
        "where": what.where,
        "block": block(what, found),
        "warnings": warnings(what, found),
        "notes": notes(what, found),
        "source": what.source,
    }


def _one(found: Connection, release: int | None) -> dict[str, Any]:
    return {
        "cluster": found.cluster,
        "release": release,
        "endpoint": found.url if found.known else None,
        "others": list(found.others),
        "tunnel": found.tunnel,
        "model": found.model,
        "key": found.key and {"env": found.key.env, "file": found.key.file, "value": found.key.value},
        **{name: getattr(found.features, name) for name in ("context", "tools", "reasoning", "messages")},
        "request": found.request.body,
    }


def _group(inventory: Inventory, name: str | None) -> tuple[str, Node]:
    """The name of a group (default: the first), and its head."""
    groups = {each.name: each.nodes for each in inventory.groups}
    groups = groups or {ONLY_GROUP: [node.label for node in inventory.nodes]}
    name = name or next(iter(groups))
    if name not in groups:
        raise UsageError(f"there is no group {name}", hint=f"its groups: {', '.join(groups)}")
    return name, next(node for node in inventory.nodes if node.label == groups[name][0])


def _reached(inventory: Inventory, head: Node) -> tuple[str | None, str | None]:
    """URL of the API on ``head`` (None while its address is unknown), and the command of a tunnel if one is needed.

    An API on the head's management address is reached at the address by which SSH reaches the head.
    """
    api, ssh = inventory.api, inventory.node_ssh(head)
    target = ssh_target(Address(head.host, head.connection, SshSettings(**ssh.model_dump())))
    _, host = api.addresses(target.host if target else None if loopback(api.url(head.host)) else head.host, None)
    if host is None:
        return None, None
    if target is None or not (loopback(api.url(host)) or target.jump or target.proxy_command):
        return api.url(host), None
    flags = {"-p": ssh.port, "-J": ssh.jump, "-i": ssh.identity}  # ssh_config has the others
    words = ["ssh", "-N", "-L", f"{api.port}:{bracketed(host)}:{api.port}"]
    words += [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
    return api.url(LOOPBACK), shlex.join([*words, f"{ssh.user}@{head.host}" if ssh.user else head.host])
