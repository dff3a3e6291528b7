"""The gateway of an inventory: what it answers over its control socket, and which image can run it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sparkcluster.errors import NotServing, SparkclusterError, UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.collect import inspect_images
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts
from sparkcluster.fit.source import GIB
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.program import call
from sparkcluster.inspect.budget import budget
from sparkcluster.inspect.cluster import View, see
from sparkcluster.node.shared import PACKAGES
from sparkcluster.plan.release_record import RecordedGroup, recorded_groups, recorded_release
from sparkcluster.printable import one_line
from sparkcluster.spec import Spec
from sparkcluster.spec.models import GATEWAY
from sparkcluster.topology.build import gateway as listens


def of_inventory(specs: Sequence[Spec]) -> Spec:
    """The spec of the gateway itself, with its own cluster name and image; ``specs`` are those of all models.

    Its nodes are all nodes that serve a model. Without ``gateway.image`` it uses the image of the first always-on model
    on its node, else of the first model there.
    """
    node = specs[0].gateway_node
    nodes = {each.label: each for spec in specs for each in spec.inventory.nodes}
    here = [spec for spec in specs if node in {each.label for each in spec.inventory.nodes}]
    model = next((spec for spec in here if spec.idle_s is None), here[0])
    update = {"cluster": model.gateway_cluster, "nodes": list(nodes.values()), "groups": []}
    inventory = model.inventory.model_copy(update=update)
    playbook, build, gateway = model.playbook, model.build, inventory.gateway
    if gateway is not None and gateway.image:
        playbook, build = playbook.model_copy(update={"image": gateway.image, "build": None}), None
    return dataclasses.replace(model, inventory=inventory, playbook=playbook, build=build, model=GATEWAY, idle_s=None)


def ask(fleet: Fleet, spec: Spec, path: str = "/state") -> dict[str, Any]:
    """The gateway's answer to ``GET /state`` (with ``models`` by name), or to a ``POST`` of another path.

    Raises:
        NotServing: it does not answer, does not listen for clients, or refuses.
        HostError: its node does not answer.
    """
    node, method = spec.gateway_node, "GET" if path == "/state" else "POST"
    place = {"state_dir": spec.inventory.state_dir, "cluster": spec.inventory.cluster}
    request = {**place, "method": method, "path": path}
    answer = call(fleet[node], "gateway_control", request, answer=dict[str, Any])
    if why := answer.get("error") or answer.get("trouble"):
        hint = "sparkcluster status INVENTORY; if it is down, sparkcluster up INVENTORY"
        raise NotServing(one_line(f"the gateway on {node}: {why}"), node=node, step="gateway", hint=hint)
    return answer


Groups = dict[str, RecordedGroup]


def recorded(view: View, specs: Sequence[Spec]) -> dict[str, Groups]:
    """The groups of each model's newest release whose head answers, by name; none for a model never started.

    ``view`` was queried about ``specs`` also.
    """
    found: dict[str, Groups] = {}
    for spec, also in zip(specs, view.collected.also, strict=True):
        facts = {node.label: also[node.label] for node in spec.inventory.nodes if node.label in view.facts}
        newest = recorded_release(spec.inventory, facts)
        groups = recorded_groups(newest.record) if newest else {}
        found[spec.model] = {name: each for name, each in groups.items() if each.head in facts}
    return found


def document(fleet: Fleet, specs: Sequence[Spec], view: View | None = None) -> dict[str, Any]:
    """The gateway's part of ``status``, with the models ``specs`` behind it; ``why`` says why it does not answer.

    ``view`` covers all nodes and was queried about ``specs`` also; by default they are queried now.
    """
    spec, known, url, why = of_inventory(specs), dict[str, Any](), None, None
    view = view or see(fleet, spec, also=specs)
    try:
        if error := view.collected.errors.get(spec.gateway_node):
            raise error
        url = listens(spec, view.facts[spec.gateway_node])[1]
        known = ask(fleet, spec)["models"]
    except SparkclusterError as error:
        why = error.message
    planned = {part.model: part.bytes or None for parts in budget(specs).sparks.values() for part in parts}
    models, releases = [], recorded(view, specs)
    for each in specs:
        said = known.get(each.model, {"state": "unknown"})
        measured = max((group.measured.get("used_gib") or 0 for group in releases[each.model].values()), default=0)
        sizes = {"planned_bytes": planned[each.model], "measured_bytes": int(measured * GIB) or None}
        models.append({"name": each.model, "on_demand": each.idle_s is not None, **said, **sizes})
    return {"node": spec.gateway_node, "endpoint": url, "why": why, "models": models}


def with_packages(fleet: Fleet, view: View, specs: Sequence[Spec], *, staged: bool = True) -> Facts:
    """Facts of the gateway's node, with what the gateway's image contains; ``view`` was queried about ``specs`` also.

    Raises:
        UsageError: the image is missing although it should be ``staged``, or lacks packages of the gateway; the hint
            names the smallest image that has them.
        SparkclusterError: its node cannot be queried.
    """
    spec, node = view.spec, view.spec.gateway_node
    if error := view.collected.errors.get(node):
        raise error
    found = inspect_images(fleet, spec, {node: view.facts[node]})[node]
    engine = engine_of(found)
    if not engine.lacks if engine else found.image is None and not staged:
        return found
    lacking = " and ".join((engine and engine.lacks) or PACKAGES)
    if spec.inventory.runtime.kind == "process":
        why = f"the gateway needs {lacking} in {spec.inventory.runtime.python or 'python3'} on {node}"
        raise UsageError(why, hint="install them there, or set runtime.python to another Python")
    also = zip(specs, view.collected.also, strict=True)
    images = [read(inspect_images(fleet, other, {node: facts[node]})[node].image) for other, facts in also]
    fit = [each for each in images if each and (inside := read(each.inside)) and not inside.lacks]
    smallest = min(fit, key=lambda image: image.size_bytes).reference if fit else "an image"
    why = f"lacks {lacking}" if engine else f"is not on {node} or cannot be read"
    hint = f"set gateway.image to {smallest}, which is on {node} and has {lacking}"
    raise UsageError(f"the gateway cannot run: its image {spec.image} {why}", hint=hint)
