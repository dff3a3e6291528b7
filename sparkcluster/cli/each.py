"""Runs a command once for each model of an inventory with ``models``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparkcluster import hints
from sparkcluster.cli.common import accepted, typed
from sparkcluster.cli.output import data, emit_json, message, show_error
from sparkcluster.errors import Interrupted, SparkclusterError, UsageError

if TYPE_CHECKING:
    from sparkcluster.spec import Spec

_OF_ONE = {
    "rollback": None,
    "bench": None,
    "playbook": "--playbook",
    "image": "--image",
    "set": "--set",
    "save": "--save",
    "resume": "--resume",
    "order": "--order",
    "bundle": "--bundle",
    "follow": "--follow",
    "failed": "--failed",
    "given": "--from",
    "fix": "--fix",
    "numbers": "releases NUMBER",
}
"""Commands, and flags by their names in the parsed line, that need a single model."""


def for_one(what: str, names: Sequence[str]) -> UsageError:
    """The error for ``what``, typed without ``--model`` although there are several models."""
    return UsageError(f"{what} is for one model", hint=f"add --model NAME, one of {', '.join(names)}")


def run(name: str, command: Any, args: argparse.Namespace) -> int:
    """Run the command once, or for each model if the inventory has several and ``--model`` names none.

    Raises:
        SparkclusterError: as the command; with several models only errors that concern all of them.
    """
    from sparkcluster.cli import gateway
    from sparkcluster.spec.load import load, load_all, model_names

    names = model_names(args.inventory)
    live = name == "status" and (vars(args).get("watch") or vars(args).get("follow"))
    if not names or live or getattr(command, "ALL_MODELS", False):
        return int(command.run(args))
    if args.model is not None:
        if name not in gateway.STARTS or not load(args.inventory, starts=False, model=args.model).gateway_node:
            return int(command.run(args))
        return _each(name, command, args, load_all(args.inventory, starts=False), [args.model])
    flags = {**_OF_ONE, **({"json_lines": "logs --json-lines"} if name == "logs" else {})}
    if wanting := next((flag or name for key, flag in flags.items() if key == name or vars(args).get(key)), None):
        raise for_one(wanting, names)
    specs = load_all(args.inventory, starts=hasattr(args, "playbook"))
    if name == "ask":
        args.model = next((spec.model for spec in specs if spec.playbook.chats), names[0])
        hints.command_line = typed(args)
        return int(command.run(args))
    return _each(name, command, args, specs, [spec.model for spec in _turns(name, args, specs)])


def _turns(name: str, args: argparse.Namespace, specs: Sequence[Spec]) -> Sequence[Spec]:
    """``specs`` in the order in which the command runs, after consent and the memory check for all of them.

    ``up`` starts the largest model first, since it needs the most room while it starts; ``down`` stops in reverse. A
    node on the command line leaves the models that use it.
    """
    node = vars(args).get("node")
    if isinstance(node, str):
        specs = [spec for spec in specs if node in [each.label for each in spec.inventory.nodes]] or specs
    if name in {"enable", "disable"}:  # up does it for on-demand models
        specs = [spec for spec in specs if spec.idle_s is None] or specs
    if name in {"up", "upgrade", "plan", "preflight"}:
        from sparkcluster.inspect.budget import budget, by_size, require_room

        found = require_room(specs) if name in {"up", "upgrade"} else budget(specs)
        for text in found.problems:
            message(f"{text}; up refuses them", kind="warning")
        specs = by_size(specs, found) if name == "up" else specs
    if name in {"up", "upgrade", "stage"} and not args.dry_run:
        _accept(args, specs)
    return specs[::-1] if name == "down" else specs


def _each(name: str, command: Any, args: argparse.Namespace, specs: Sequence[Spec], turns: Sequence[str]) -> int:
    """Run the command for each model in ``turns``, and for the gateway.

    JSON has the order of ``specs``. Returns the exit code that all have in common, else 1.
    """
    from sparkcluster.cli import gateway

    behind = specs[0].gateway_node and name in gateway.TAKES and not vars(args).get("dry_run")
    if behind:  # "" is the gateway: stopped before its models, started after them
        turns = ["", *turns] if name == "down" else [*turns, ""]
    found: dict[str, list[dict[str, Any]]] = {model: [] for model in (*(spec.model for spec in specs), "")}
    as_json = args.json or args.json_lines
    codes, done = set(), list[str]()
    on_demand = {spec.inventory.cluster: spec.model for spec in specs if spec.idle_s is not None}
    for model in turns:
        if not model and name in gateway.STARTS and not done:
            continue
        more = {"model": model or None, "collected": found[model] if as_json else None, "on_demand": on_demand}
        one = argparse.Namespace(**{**vars(args), **more})
        hints.command_line = typed(one)
        if args.json_lines:
            text = f"model: {model}" if model else "gateway"
            emit_json({"at": time.time(), "event": "note", "text": text}, line=True)
        else:
            if not (args.json or model == turns[0]):
                data()
            message(model or "gateway", kind="model" if model else "")
        try:
            code = int(command.run(one) if model else gateway.run(name, one, specs, done))
            done += [] if code else [model]
            codes.add(code)
        except Interrupted:
            raise
        except SparkclusterError as error:
            codes.add(error.exit_code)
            if as_json:
                found[model].append(error.as_json())
            else:
                show_error(error)
    if as_json:
        said = found.pop("")
        documents = [{"name": model, **document} for model, each in found.items() for document in each]
        first = {key: value for key, value in documents[0].items() if key != "name"} if documents else {}
        emit_json({**first, "models": documents, **({"gateway": said[0]} if said else {})}, line=args.json_lines)
    return codes.pop() if len(codes) == 1 else 1


def _accept(args: argparse.Namespace, specs: Sequence[Spec]) -> None:
    """Ask for consent to all models before the first one starts."""
    from sparkcluster.cli.progress import reporter

    with reporter(as_json=args.json, json_lines=args.json_lines) as report:
        for spec in specs:
            accepted(args, spec, report)
