"""The gateway of an inventory as it is: what it says over its control socket, and which image can run it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from pydantic import Field

from sparkcluster.answers import checked
from sparkcluster.errors import NotServing, SparkclusterError, UsageError
from sparkcluster.facts.base import Fact, read
from sparkcluster.facts.collect import collect_facts, inspect_images
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts
from sparkcluster.fit.source import GIB
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.program import call
from sparkcluster.inspect.budget import budget
from sparkcluster.inspect.cluster import see
from sparkcluster.node.shared import PACKAGES
from sparkcluster.plan.release_record import RecordedGroup, recorded_groups
from sparkcluster.spec import Spec
from sparkcluster.spec.models import GATEWAY
from sparkcluster.topology.build import gateway as listens

MAY_S = 30.0
"""For one question to the gateway, with SSH."""


class ModelState(Fact):
    """A model as the gateway knows it; None for what it does not know.

    Attributes:
        idle_s_left: until it is unloaded if nobody asks for it.
        last_used_s: seconds since its last request.
        progress: of a load, such as ``42 %``.
    """

    state: str
    why: str | None = None
    waiting: int = 0
    in_flight: int = 0
    idle_s_left: float | None = None
    last_used_s: float | None = None
    progress: str = ""


class Answer(Fact):
    """What the gateway said: the HTTP status, and a document; or why it said nothing."""

    status: int = 0
    answer: dict[str, Any] = Field(default_factory=dict)
    unread: str | None = None


class Told(Fact):
    """Documents of the control socket: models by name, the text of a change, or an error.

    ``trouble`` is why it does not listen for clients, such as a port that is in use.
    """

    models: dict[str, ModelState] = Field(default_factory=dict)
    trouble: str | None = None
    text: str = ""
    error: str | None = None


def of_inventory(specs: Sequence[Spec]) -> Spec:
    """The spec of the gateway itself: its cluster, and its image; ``specs`` are those of all models.

    Its nodes are those of the inventory that serve a model. Without ``gateway.image`` the image is that of the first
    model on its node that always serves, else of the first there.
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


def ask(fleet: Fleet, spec: Spec, path: str = "/state") -> Told:
    """What the gateway ``spec`` answers to ``GET /state``, or to a ``POST`` of ``path``.

    Raises:
        NotServing: it does not answer, or refuses.
        HostError: its node does not answer.
    """
    node = spec.gateway_node
    request = {
        "state_dir": spec.inventory.state_dir,
        "cluster": spec.inventory.cluster,
        "method": "GET" if path == "/state" else "POST",
        "path": quote(path),
    }
    found = call(fleet[node], "gateway_control", request, answer=Answer, timeout_s=MAY_S)
    if found.unread is not None:
        hint = "sparkcluster up INVENTORY   starts it"
        raise NotServing(f"the gateway on {node} does not answer: {found.unread}", node=node, step="gateway", hint=hint)
    told = checked(Told, found.answer, node=node, step="gateway")
    if told.error or found.status != 200:
        why = told.error or f"HTTP {found.status}"
        raise NotServing(why, node=node, step="gateway", hint="sparkcluster status INVENTORY")
    return told


Groups = dict[str, RecordedGroup]


def recorded(fleet: Fleet, spec: Spec) -> Groups:
    """The groups of the newest release of a model, by name; none where it was never started.

    Raises:
        SparkclusterError: a node of it cannot be queried.
    """
    view = see(fleet, spec, [node.label for node in spec.inventory.nodes])
    for error in view.collected.errors.values():
        raise error
    return recorded_groups(view.newest.record) if view.newest else {}


def document(fleet: Fleet, specs: Sequence[Spec]) -> dict[str, Any]:
    """What ``status`` says of the gateway and of the models ``specs`` behind it; ``why`` it does not answer, if so."""
    spec, models, why, url = of_inventory(specs), dict[str, ModelState](), None, None
    used: dict[str, float] = {}
    try:
        url = listens(spec, see(fleet, spec, [spec.gateway_node]).facts[spec.gateway_node])[1]
        told = ask(fleet, spec)
        models, why = told.models, told.trouble
    except (SparkclusterError, LookupError) as error:
        why = str(error)
    for each in specs:
        with contextlib.suppress(SparkclusterError):
            measured = [group.measured.get("used_gib") or 0 for group in recorded(fleet, each).values()]
            used[each.model] = max(measured, default=0)
    planned = {part.model: part.bytes or None for parts in budget(specs).sparks.values() for part in parts}
    return {
        "node": spec.gateway_node,
        "endpoint": url,
        "why": why,
        "models": [
            {
                "name": each.model,
                "on_demand": each.idle_s is not None,
                **models.get(each.model, ModelState(state="unknown")).model_dump(),
                "planned_bytes": planned[each.model],
                "measured_bytes": int(used.get(each.model, 0) * GIB) or None,
            }
            for each in specs
        ],
    }


def with_packages(fleet: Fleet, spec: Spec, specs: Sequence[Spec], *, staged: bool = True) -> Facts:
    """Facts of the node of the gateway ``spec``, with what its image has; ``specs`` are those of all models.

    Raises:
        UsageError: the image is not there, though it is said to be ``staged``, or lacks what the gateway's program
            imports; with one that has it.
        SparkclusterError: the node cannot be queried.
    """
    node = spec.gateway_node
    collected = collect_facts(fleet, spec, [node], also=specs)
    if error := collected.errors.get(node):
        raise error
    found = inspect_images(fleet, spec, collected.facts)[node]
    engine = engine_of(found)
    if (engine is not None and not engine.lacks) or (found.image is None and not staged):
        return found
    lacking = " and ".join((engine and engine.lacks) or PACKAGES)
    if spec.inventory.runtime.kind == "process":
        why = f"the gateway needs {lacking} beside the engine in {spec.inventory.runtime.python or 'python3'} on {node}"
        raise UsageError(why, hint="install them there, or name another Python as runtime.python")
    sizes: dict[str, int] = {}
    for other, facts in zip(specs, collected.also, strict=True):
        inside = engine_of(here := inspect_images(fleet, other, facts)[node])
        if inside is not None and not inside.lacks and (image := read(here.image)) is not None:
            sizes[image.reference] = image.size_bytes
    smallest = min(sizes, key=lambda name: sizes[name], default=None)
    wrong = "lacks " + lacking if engine is not None else f"is not on {node}, or cannot be read"
    hint = f"write gateway: {{image: {smallest}}} in the inventory: it is on {node}, and has them" if smallest else None
    raise UsageError(
        f"the gateway cannot run: its image {spec.image} {wrong}",
        hint=hint or f"name an image that has {lacking} as gateway.image, and on {node}: docker pull IMAGE",
    )
