"""Expand ``models`` of an inventory: each entry becomes an inventory of its own nodes.

All readers of a spec see one model. The first entry without ``name`` uses the cluster's name, so that it continues a
former ``playbook:``; every other entry is a cluster ``CLUSTER-NAME``. The default name of an entry is its playbook's.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkcluster.errors import Problem, UsageError
from sparkcluster.spec import Spec
from sparkcluster.spec.document import Document, KeyPath, Place, shown
from sparkcluster.spec.inventory import Gateway, Inventory, ModelEntry
from sparkcluster.suggest import did_you_mean, playbook_name

OWN = ("playbook", "image", "set", "groups")
"""Inventory keys that each entry has separately."""

GATEWAY = "gateway"
"""Suffix of the gateway's cluster name."""
_LONGEST = 63
"""Maximum length of a cluster name (``spec.base.Name``)."""

Wrong = Iterator[tuple[str, str, str | None]]
"""Problems of an entry: key, message and hint."""


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """Name and location of an entry.

    Attributes:
        name: name for ``--model``.
        cluster: cluster name in records, labels and paths on the nodes.
        nodes: labels of its nodes, in order.
        port: TCP port of its endpoint.
        spans: labels of its nodes in groups of several nodes.
    """

    name: str
    cluster: str
    nodes: tuple[str, ...]
    port: int
    spans: frozenset[str]


def of(written: Inventory) -> list[Model]:
    """The models of an inventory, in order; empty without ``models``.

    Ports count up from ``api.port`` and skip ports named by entries. A model that would get the gateway's port gets the
    first free port below ``api.port`` instead, so that adding a gateway changes no other port.
    """
    taken = {entry.port for entry in written.models if entry.port}
    below = next((port for port in range(written.api.port - 1, 0, -1) if port not in taken), 0)
    gateway = written.gateway.port if written.gateway else None
    free = (below if port == gateway else port for port in range(written.api.port, 65536) if port not in taken)
    itself = next((entry for entry in written.models if entry.name is None), None)
    found = []
    for entry in written.models:
        name = entry.name or playbook_name(entry.playbook)
        found.append(
            Model(
                name,
                written.cluster if entry is itself else f"{written.cluster}-{name}",
                _nodes(entry, [node.label for node in written.nodes]),
                entry.port or next(free, 0),
                frozenset(_spanned(entry, written)),
            )
        )
    return found


def _nodes(entry: ModelEntry, labels: Sequence[str]) -> tuple[str, ...]:
    grouped = [name for group in entry.groups for name in group.nodes]
    return tuple(entry.nodes or [label for label in labels if not grouped or label in grouped])


def _spanned(entry: ModelEntry, written: Inventory) -> Iterator[str]:
    groups = [tuple(group.nodes) for group in entry.groups]
    for nodes in groups or [_nodes(entry, [node.label for node in written.nodes])]:
        yield from nodes if len(nodes) > 1 else ()


def named(written: Inventory, name: str) -> int:
    """Index of the entry ``name``.

    Raises:
        UsageError: no such entry.
    """
    names = [model.name for model in of(written)]
    if name not in names:
        called = {each.cluster: each.name for each in of(written)}
        called |= {playbook_name(entry.playbook): each for entry, each in zip(written.models, names, strict=True)}
        hint = did_you_mean(called.get(name, name), names, f"models: {', '.join(names)}")
        raise UsageError(f"no model named {shown(name)}", hint=hint)
    return names.index(name)


def gateway_node(written: Inventory) -> str:
    """Label of the gateway's node: the first node of an always-on model; empty without ``gateway``."""
    pairs = zip(written.models, of(written), strict=True)
    always = (model.nodes[0] for entry, model in pairs if not entry.on_demand)
    return next(always, written.nodes[0].label) if written.gateway else ""


def entry(document: Document, written: Inventory, name: str) -> tuple[Document, list[str], dict[str, Any]]:
    """The inventory of the entry ``name``, its aliases, and further fields for ``Spec``.

    Raises:
        UsageError: no such entry.
    """
    index, models = named(written, name), of(written)
    beside = [at for at, each in enumerate(models) if at != index and {*models[index].nodes} & {*each.nodes}]
    # Entries without victim are stopped last, in reverse order of the file.
    places = [(entry.victim or math.inf, -at) for at, entry in enumerate(written.models)]
    before = sum(places[at] < places[index] for at in beside)
    more = {"model": name, "siblings": tuple(models[at].name for at in beside), "stopped_after": before}
    on_demand = written.models[index].on_demand
    more |= {"gateway_node": gateway_node(written), "idle_s": on_demand.idle_s if on_demand else None}
    more["gateway_cluster"] = f"{written.cluster}-{GATEWAY}"
    return expand(document, written, index), written.models[index].aliases, more


def expand(document: Document, written: Inventory, index: int) -> Document:
    """The inventory of one entry: ``document`` with the entry's keys and nodes only.

    All values keep their lines. ``written`` is the parsed ``document``.
    """
    model, entry = of(written)[index], document.data["models"][index]
    labels = [node.label for node in written.nodes]
    kept = {labels.index(label): at for at, label in enumerate(model.nodes)}

    def moved(path: KeyPath) -> KeyPath | None:
        match path:
            case ("models", at, key, *rest) if at == index and (key in OWN or (key == "nodes" and not rest)):
                return (key, *rest)
            case ("nodes", int(at), *rest) if at in kept:
                return ("nodes", kept[at], *rest)
            case ("models" | "nodes", *_):
                return None
        return path

    def places(found: Mapping[KeyPath, Any]) -> dict[KeyPath, Any]:
        return {to: place for path, place in found.items() if (to := moved(path)) is not None}

    data = {key: value for key, value in document.data.items() if key not in {"models", *OWN}}
    data |= {key: entry[key] for key in OWN if entry.get(key) is not None}
    data["nodes"] = [document.data["nodes"][labels.index(label)] for label in model.nodes]
    data["cluster"], data["api"] = model.cluster, {**(data.get("api") or {}), "port": model.port}
    values, keys = places(document.values), places(document.keys)
    keys.setdefault(("nodes",), document.values["models", index])
    return Document(document.file, data, values, keys, places(document.written))


def check(written: Inventory, document: Document) -> Iterator[Problem]:
    """Problems across entries that are valid by themselves."""
    for key in {*OWN} - {"playbook"} & document.data.keys():
        yield document.problem((key,), f"{key} must be in an entry of models", "move it to the entry", key=True)
    models, labels = of(written), [node.label for node in written.nodes]
    for index, (entry, model) in enumerate(zip(written.models, models, strict=True)):
        for key, message, hint in (*_wrong(entry, model, labels), *_behind(entry, model, written.gateway)):
            yield document.problem(("models", index, key), message, hint)
        for earlier, other in enumerate(models[:index]):
            for key, message, hint in _clashes(model, other, entry, written.models[earlier]):
                yield document.problem(("models", index, key), message, hint)
    yield from _keys(written, document, [model.name for model in models])
    listed = {label for model in models for label in model.nodes}
    if unused := [label for label in labels if label not in listed]:
        message = f"in no model: {', '.join(unused)}"
        yield document.problem(("models",), message, "add them to a model, or remove them from nodes", key=True)


def _wrong(entry: ModelEntry, model: Model, labels: Sequence[str]) -> Wrong:
    """Problems of a single entry."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", model.name):
        yield "playbook", f"the playbook's name {shown(model.name)} is not a valid model name", "write a name"
    if entry.nodes and entry.groups:
        yield "nodes", "nodes and groups are exclusive", "keep one of them: groups are replicas"
    grouped = [label for group in entry.groups for label in group.nodes]
    for label in dict.fromkeys(each for each in (*entry.nodes, *grouped) if each not in labels):
        yield "nodes", f"no node named {shown(label)}", did_you_mean(label, labels, f"nodes: {', '.join(labels)}")
    for label, times in Counter(entry.nodes).items():
        if times > 1:
            yield "nodes", f"lists {label} {times} times", "list each node once"
    if len(model.cluster) > _LONGEST:
        yield "name", f"{model.cluster} is longer than {_LONGEST} characters", "write a shorter name"


def _behind(entry: ModelEntry, model: Model, gateway: Gateway | None) -> Wrong:
    """Problems of an entry that depend on the inventory's ``gateway``."""
    if entry.on_demand and gateway is None:
        yield "on_demand", "needs a gateway, which loads the model", "write gateway: {port: 8000} in the inventory"
    if entry.on_demand and len(entry.groups) > 1:
        yield "groups", "a model on demand can have only one group", "remove on_demand, or keep one group"
    if gateway and model.name == GATEWAY:
        yield "name", '"gateway" is reserved', "write another name"
    if gateway and entry.port == gateway.port:
        yield "port", f"port {gateway.port} is the gateway's", "use another port, or omit it"


def _keys(written: Inventory, document: Document, names: Sequence[str]) -> Iterator[Problem]:
    """Problems of the gateway's keys; ``names`` are all models."""
    for name, key in (written.gateway.keys if written.gateway else {}).items():
        path = ("gateway", "keys", name)
        if written.api.key is None:
            first = "remove keys, type sparkcluster key INVENTORY, then restore keys"
            yield document.problem(path, "needs api.key: without it the gateway accepts every client", first)
        for label in (each for each in key.models or () if each not in names):
            hint = did_you_mean(label, names, f"models: {', '.join(names)}")
            yield document.problem((*path, "models"), f"no model named {shown(label)}", hint)


def _clashes(model: Model, other: Model, entry: ModelEntry, before: ModelEntry) -> Wrong:
    """Conflicts between two entries, reported for ``model``."""
    if model.name == other.name:
        yield "name", f"two models are named {model.name}", "rename one of them"
    if not model.port:
        yield "port", f"no port left above {before.port or other.port}", "write port, or a lower api.port"
    elif model.port == other.port:
        yield "port", f"{other.name} also has port {model.port}", "use another port, or omit it"
    for alias in sorted({*entry.aliases} & {*before.aliases, other.name} | {*before.aliases} & {model.name}):
        yield "aliases", f"{other.name} also has the name {alias}", "give each alias to one model only"
    if both := sorted(model.spans & other.spans):
        message = f"{other.name} and {model.name} both span several nodes, including {both[0]}"
        hint = "write nodes or groups in one of the entries, so that only one model spans this node"
        if not (entry.nodes or entry.groups):
            message, hint = f"{message}; without nodes, the last uses all", f"write nodes: [{both[0]}] in its entry"
        yield "nodes", message, hint


def served_twice(document: Document, specs: Sequence[Spec]) -> Iterator[Problem]:
    """Duplicate API names among all models of the inventory ``document``."""
    reserved = '"auto" is reserved: the gateway\'s name for the largest loaded chat model'
    seen = {"auto": reserved} if specs[0].gateway_node else {}
    for index, spec in enumerate(specs):
        for name in dict.fromkeys([spec.playbook.model_name, *spec.playbook.aliases]):
            if name in seen:
                yield document.problem(("models", index), seen[name], "set another served_name, or remove the alias")
            seen.setdefault(name, f"{spec.model} is also served as {name}")


def as_written(document: Document) -> None:
    """Set ``playbook`` of an inventory with ``models`` to that of its first entry, for readers of nodes only.

    A placeholder is set if the entry is malformed; validation reports it.
    """
    entries = document.data.get("models")
    if entries is None and document.data.get("gateway") is not None:
        message, hint = "needs models", "write the playbook as its entry: models: [{playbook: …}]"
        document.problems.append(document.problem(("gateway",), message, hint, key=True))
    if entries and "playbook" not in document.data:
        first = entries[0] if isinstance(entries, list) else None
        named = first.get("playbook") if isinstance(first, dict) else None
        document.data["playbook"] = named if isinstance(named, str) and named else "malformed"
        place = document.values.get(("models", 0, "playbook"), Place())
        document.keys["playbook",] = document.values["playbook",] = place
    elif entries is not None and "playbook" in document.data:
        message, hint = "cannot be combined with models", "write it as an entry of models"
        document.problems.append(document.problem(("playbook",), message, hint, key=True))
