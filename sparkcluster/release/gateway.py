"""The gateway of an inventory: brought to what its models are now, asked to make room, and removed with them.

It is one container, or with runtime ``process`` one process, labelled as a rank of a cluster of its own, which no
release records: whatever it is to do is in its config.json. Where models are loaded on demand its node has the door as
well, which is that cluster's guard.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from sparkcluster.errors import LaunchError, NotServing, SparkclusterError
from sparkcluster.facts.base import read
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts
from sparkcluster.fit.budget import room
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.program import call, standalone
from sparkcluster.inspect import gateway as seen
from sparkcluster.inspect.budget import budget
from sparkcluster.inspect.cluster import see
from sparkcluster.node.shared import CONFIG_FILE, LABEL_PLAN
from sparkcluster.plan.gateway import PROGRAM_FILE, config, rank
from sparkcluster.plan.model import NodePlan
from sparkcluster.printable import one_line
from sparkcluster.release.enabled import require_running
from sparkcluster.report import Report
from sparkcluster.runtime import secrets, stop_steps
from sparkcluster.runtime.change import Changer, Step
from sparkcluster.runtime.lease import AGAIN_S, Lease
from sparkcluster.spec import Playbook, Spec
from sparkcluster.topology.build import gateway as listens

READY_S = 60.0
"""How long it may take to answer and to reach what serves: a container starts in seconds, and engines are asked every
5 s."""
DRAIN_S = 310.0
"""How long an unload may take: requests in flight get 300 s."""
_CHANGE_S = 120.0
_LOADED = {"starting", "ready", "draining", "stopping"}


def ensure(fleet: Fleet, specs: Sequence[Spec], names: Collection[str], report: Report) -> str:
    """Let the gateway know the models ``specs`` as they are recorded now, and start it unless it runs; its URL.

    Returns once it answers, and reaches those of ``names`` that always serve.

    Raises:
        UsageError: its image cannot run it, or a key is missing here.
        LaunchError: its port is in use, it does not answer, it does not reach a model, or no door runs.
        LeaseHeld: another operator changes it.
    """
    spec = seen.of_inventory(specs)
    node = spec.gateway_node
    report.step("gateway", f"on {node}")
    facts = seen.with_packages(fleet, spec, specs)
    recorded = dict[str, seen.Groups]()
    for each in specs:
        try:
            recorded[each.model] = seen.recorded(fleet, each)
        except SparkclusterError as error:
            if each.model in names:
                raise
            report.note(f"warning: {each.model} is left out until the next up: {error.message}")
            recorded[each.model] = {}
    document = _config([_served(each, recorded[each.model]) for each in specs], facts, recorded)
    image, engine, program = read(facts.image), engine_of(facts), standalone("program", package="gateway")
    python, image_id = engine.python if engine else "python3", image.id if image else None
    planned = rank(specs, facts, image_id=image_id, python=python, program=program)
    view = see(fleet, spec)
    ours = view.ranks.ours
    former = [name for name, ranks in ours.items() if ranks and name != node]
    (container,) = planned.containers
    runs = any(
        each.state == "running" and each.labels.get(LABEL_PLAN) == container.labels[LABEL_PLAN] for each in ours[node]
    )
    with Lease(fleet, spec.inventory, "up").acquire([node, *former]) as lease:
        steps = [*([] if runs else stop_steps(ours[node])), *_steps(planned, document, program, started=runs)]
        lease.changer.apply({node: steps, **{name: stop_steps(ours[name]) for name in former}}, timeout_s=_CHANGE_S)
        _door(spec, facts, _places(fleet, specs, recorded), lease.changer)
    always = [each.model for each in specs if each.idle_s is None and each.model in names]
    # Before the gateway came to the inventory, an engine may have had its port.
    old = [name for name, model in recorded.items() for each in model.values()
           if each.head == node and each.plan["endpoints"][each.name].endswith(f":{document['port']}/v1")]  # fmt: skip
    deaf = f"sparkcluster upgrade INVENTORY --model {old[0]}" if old else f"on {node}: ss -ltnp"
    log = f"docker logs --tail 20 {container.name}" if image_id else f"tail {container.rank_dir}/log"
    _wait(fleet, spec, always, silent=f"on {node}: {log}", deaf=deaf)
    report.done()
    return listens(spec, facts)[1]


def _served(spec: Spec, groups: seen.Groups) -> Spec:
    """``spec`` with the playbook that serves, by whose names its engine is asked."""
    for group in groups.values():
        with contextlib.suppress(ValidationError):  # of another version of sparkcluster
            return dataclasses.replace(spec, playbook=Playbook.model_validate(group.playbook))
    return spec


def _config(specs: Sequence[Spec], facts: Facts, recorded: Mapping[str, seen.Groups]) -> dict[str, Any]:
    """The document of config.json."""
    starts: dict[str, float | None] = {}
    logged: dict[str, dict[str, Any]] = {}
    backends: dict[str, dict[str, str]] = {}
    for name, groups in recorded.items():
        backends[name] = {group: each.plan["endpoints"][group] for group, each in groups.items()}
        for each in groups.values():
            logged[name], starts[name] = {**each.measured, "nodes": len(each.ranks)}, each.measured.get("start_s")
    found = budget(specs, measured=logged)
    sizes: dict[str, dict[str, int | None]] = {spec.model: {} for spec in specs}
    # What is larger than a Spark has served on it all the same: up started it, so its size is not known.
    for node, parts in found.sparks.items():
        for part in parts:
            sizes[part.model][node] = part.bytes if 0 < part.bytes <= room(found.machine) else None
    return config(
        specs,
        facts,
        sizes=sizes,
        room=dict.fromkeys(found.sparks, room(found.machine)),
        backends=backends,
        start_s=starts,
        key=secrets.api_key(specs[0]) if specs[0].inventory.api.key is not None else None,
        keys=secrets.gateway_keys(specs[0]),
    )


def _steps(planned: NodePlan, document: Mapping[str, Any], program: str, *, started: bool) -> list[Step]:
    """Steps that tell a gateway that runs what it has to know, or else start it."""
    (container,) = planned.containers
    place = container.rank_dir
    told: Step = {"do": "put", "path": f"{place}/{CONFIG_FILE}", "content": json.dumps(document), "mode": 0o600}
    if started:
        return [told]
    start: Step = {"name": container.name, "argv": list(container.argv), "rank_dir": place}
    if container.image is not None:
        start |= {"do": "start-container", "roots": {}}
    else:
        start |= {"do": "start-process", "env": planned.env, "env_file": None, "labels": container.labels}
    made: list[Step] = [{"do": "mkdir", "path": path} for path in container.directories]
    return [*made, {"do": "put", "path": f"{place}/{PROGRAM_FILE}", "content": program, "mode": 0o644}, told, start]


def _places(fleet: Fleet, specs: Sequence[Spec], recorded: Mapping[str, seen.Groups]) -> dict[str, dict[str, Any]]:
    """Where the guard of each model on demand hears the door, of those that are enabled."""
    places = {}
    for each in specs:
        for group in recorded[each.model].values() if each.idle_s is not None else ():
            request = {"state_dir": each.inventory.state_dir, "cluster": each.inventory.cluster}
            if place := call(fleet[str(group.head)], "door_place", request, answer=dict[str, Any]):
                places[each.model] = place
    return places


def _door(spec: Spec, facts: Facts, places: Mapping[str, Any], changer: Changer) -> None:
    """Install what passes the gateway's word on to the guards in ``places``, or remove it where there are none.

    Raises:
        LaunchError: it does not run.
    """
    node, cluster = spec.gateway_node, spec.inventory.cluster
    if not places:
        changer.apply({node: [{"do": "disable"}]}, timeout_s=_CHANGE_S)
        return
    socket = f"{facts.state_dir}/clusters/{cluster}/run/door.sock"
    told = {"cluster": cluster, "node": node, "state_dir": facts.state_dir, "socket": socket, "models": places}
    step = {"do": "enable", "program": standalone("door"), "config": told}
    ((installed,),) = changer.apply({node: [step]}, timeout_s=_CHANGE_S).values()
    require_running(changer.fleet, spec, {node: installed})


def _wait(fleet: Fleet, spec: Spec, names: Collection[str], *, silent: str, deaf: str) -> None:
    """Wait until the gateway answers, listens, and reaches ``names``.

    Raises:
        LaunchError: it does not; with why, and the hint ``silent`` where it does not answer, ``deaf`` if not listen.
    """
    node, until = spec.gateway_node, time.monotonic() + READY_S
    while True:
        try:
            told = seen.ask(fleet, spec)
            models, trouble = told.get("models", {}), told.get("trouble")
            lost = [name for name in names if models.get(name, {}).get("state") != "ready"]
            if not lost and trouble is None:
                return
            why, hint = f"the gateway on {node} does not listen: {trouble}", deaf
            if trouble is None:
                why = f"the gateway on {node} does not reach {lost[0]}: {models.get(lost[0], {}).get('why')}"
                hint = f"sparkcluster doctor INVENTORY --model {lost[0]}"
        except NotServing as error:
            why, hint = error.message, silent
        if time.monotonic() > until:
            raise LaunchError(one_line(why), node=node, step="gateway", hint=hint)
        time.sleep(AGAIN_S)


def make_room(fleet: Fleet, specs: Sequence[Spec], model: str, report: Report) -> bool:
    """Unload the models on demand that share a node with ``model``, which is about to start; whether there were any.

    Without a gateway that answers there is nothing to do: nobody loads any.
    """
    spec, until = seen.of_inventory(specs), time.monotonic() + DRAIN_S
    beside = next(each.siblings for each in specs if each.model == model)
    others = [each.model for each in specs if each.idle_s is not None and each.model in beside]
    asked: set[str] = set()
    with contextlib.suppress(SparkclusterError):
        while others and time.monotonic() < until:
            models = seen.ask(fleet, spec).get("models", {})
            loaded = {name for name in others if models.get(name, {}).get("state") in _LOADED}
            if not loaded:
                break
            for name in loaded - asked:
                report.step("unload", f"{name}, to make room for {model}")
                seen.ask(fleet, spec, f"/unload/{name}")
            asked |= loaded
            time.sleep(AGAIN_S)
    return bool(asked)
