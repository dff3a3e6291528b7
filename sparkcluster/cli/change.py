"""Shared by ``up``, ``upgrade``, ``rollback`` and ``restart``: options, the result, and the last lines."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sparkcluster import hints
from sparkcluster.cli.common import emitted, reporting
from sparkcluster.cli.output import data, message, paint, typed
from sparkcluster.report import Report, size, speed_change

if TYPE_CHECKING:
    from sparkcluster.hosts.fleet import Fleet
    from sparkcluster.release.rollout import Rollout
    from sparkcluster.release.states import Options
    from sparkcluster.spec import Spec


def options(args: argparse.Namespace) -> Options:
    """The options from the command's flags and from ``cli.each``; others keep the defaults of ``Options``."""
    import dataclasses

    from sparkcluster.release.states import Options

    given, named = vars(args), {"timeout_s": "timeout", "wait_s": "wait", "pause_s": "pause"}
    names = {field.name: named.get(field.name, field.name) for field in dataclasses.fields(Options)}
    found = {name: given[flag] for name, flag in names.items() if flag in given}
    return Options(rollback=not given.get("no_rollback"), **found)


def run(args: argparse.Namespace, change: Callable[[Fleet, Spec, Report], Rollout]) -> int:
    """Deploy a release with ``change``, run the after_ready commands, and report; returns exit code 0."""
    with reporting(args) as (fleet, spec, report):
        done = change(fleet, spec, report)
        from sparkcluster.release import after_ready

        ran = after_ready.run(spec, done, report)
    document, chosen = _document(done, ran), done.view.spec
    if chosen.selected not in ({}, spec.inventory.selected) and hasattr(args, "save"):
        document["saved"] = args.save or (not (args.json or args.json_lines) and _wanted(chosen))
    if document.get("saved"):
        import dataclasses

        from sparkcluster.cli import saved

        # the default name of a model is its playbook's, which may have changed
        chosen = dataclasses.replace(
            chosen, model=saved.select(chosen.inventory_path, chosen.selected, model=chosen.model)
        )
        hints.command_line = hints.command_line._replace(model=chosen.model)
    if not emitted(args, document):
        show(document, chosen)
        if document.get("saved"):
            message(f"{_difference(chosen)} in {args.inventory}", kind="saved")
    return 0


def _wanted(chosen: Spec) -> bool:
    """Whether the user wants the new selection saved in the inventory."""
    from sparkcluster.cli.prompts import Terminal

    question = f"save {_difference(chosen)} in {chosen.inventory_path}, so that the next up keeps it?"
    return Terminal().confirm(question, default=True)


def _difference(chosen: Spec) -> str:
    """The difference between the new selection and the inventory, as text."""
    old, new = chosen.inventory.selected, chosen.selected
    differing = [key for key in {**new, **old} if new.get(key) != old.get(key)]
    return ", ".join(f"{key}: {new.get(key, 'removed')}" for key in differing)


def _document(done: Rollout, ran: list[dict[str, Any]]) -> dict[str, Any]:
    """The JSON document; ``ran`` holds the commands of ``after_ready``."""
    spec, plan = done.view.spec, done.view.planned
    drifted = {} if done.changed else {name: list(group.drift) for name, group in done.groups.items() if group.drift}
    return {
        "cluster": spec.inventory.cluster,
        "state": "serving" if spec.idle_s is None else "on demand",
        "changed": done.changed,
        "release": done.number,
        "model": spec.playbook.model_name,
        "seconds": round(done.seconds, 2),
        "groups": [
            {"name": group.name, "nodes": list(group.nodes), "endpoint": group.endpoint}
            for group in (plan.groups if plan else ())
        ],
        "after_ready": ran,
        "drift": drifted,
        "from": done.source,
        "restored": done.desired.release.number if done.desired.release else 0,
        "moved_bytes": done.copied_bytes if done.desired.operation == "upgrade" else 0,
        "downtime_s": round(done.downtime_s, 2),
        "speed": {name: {"before": before, "after": after} for name, (before, after) in done.speed.items()},
    }


def show(document: dict[str, Any], spec: Spec) -> None:
    """The last lines for people, on stdout: endpoint, facts about the change, and next commands."""
    groups = document["groups"]
    word = "up" if document["changed"] else "already up"
    word = document["state"] if document["state"] == "on demand" else word
    where = groups[0]["endpoint"] if len(groups) == 1 else f"{len(groups)} groups"
    ended = f"   {document['model']}   release {document['release']}, {document['seconds']:.1f} s"
    data(paint(f"{document['cluster']} is {word}", "bold good"), "   ", paint(where, "bold"), ended)
    for word, text in _facts(document):
        data(f"  {word:<9} {text}")
    from sparkcluster.inspect import selection
    from sparkcluster.inspect.connect import connection

    commands = {
        "tunnel": connection(spec).tunnel,
        "keep": "sparkcluster upgrade INVENTORY --save" if document.get("saved") is False else None,
        "load": "sparkcluster load INVENTORY NAME" if document["state"] == "on demand" else None,
        "ask": 'sparkcluster ask INVENTORY "Hello"' if spec.playbook.chats else None,
        "clients": "sparkcluster connect INVENTORY",
        "stop": "sparkcluster down INVENTORY",
    }
    inventory = selection.hints(spec)._replace(flags=())
    for word, command in commands.items():
        if command:
            fill = selection.hints(spec) if word == "keep" else inventory
            data(f"  {word:<9} ", paint(typed(fill(command)), "type"))


def _facts(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    several, source = len(document["groups"]) > 1, f"release {document['from']}"
    for group in document["groups"] if several else ():
        yield group["name"], f"{group['endpoint']}   {', '.join(group['nodes'])}"
    if document["restored"]:
        yield "restored", f"release {document['restored']}, as it was recorded"
    if document["moved_bytes"]:
        yield "copied", f"{size(document['moved_bytes'])} while {source} served"
    if document["downtime_s"]:
        yield "downtime", f"{document['downtime_s']:.1f} s between {source} and this one"
    for name, speed in document["speed"].items():
        if speed["before"] and speed["after"]:
            yield "speed", (f"{name}: " if several else "") + speed_change(speed["before"], speed["after"])
