"""``sparkcluster playbooks``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparkcluster.cli.common import at_least, common_flags, emitted, option
from sparkcluster.cli.output import data, message, paint, table
from sparkcluster.printable import shell

if TYPE_CHECKING:
    from sparkcluster.inspect.playbooks import Offer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``playbooks``."""
    option(parser, "name NAME?", "show one: name, path or model, also with +OVERLAY (default: list the bundled ones)")
    option(parser, "--all", "list every playbook, and the overlays (default: one of each model)")
    option(parser, "--sparks N", "list all that N Sparks can serve; with NAME, show what it is on N", at_least(1))
    common_flags(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """List the bundled playbooks, or show one."""
    from sparkcluster.inspect import playbooks
    from sparkcluster.spec import library

    found = playbooks.offers(args.sparks) if args.name is None else [playbooks.offer(args.name, args.sparks)]
    if emitted(args, {"playbooks": [each.as_json() for each in found]}):
        return 0
    if args.name is not None:
        _page(found[0], args.name)
        return 0
    short = found if args.all or args.sparks else playbooks.one_of_each(found)
    _list(short)
    if args.all:
        message(f"overlays, as in NAME+OVERLAY, for playbooks that list them: {', '.join(library.overlays())}")
    elif len(short) < len(found):
        message(f"… {len(found) - len(short)} more: sparkcluster playbooks --all")
    message("SPEED: tokens/s of one request; one in full: sparkcluster playbooks NAME")
    return 0


def _list(found: Sequence[Offer]) -> None:
    rows = [(each.playbook.name, each.between, each.weights, each.speed, each.playbook.use) for each in found]
    table(("PLAYBOOK", "SPARKS", "WEIGHTS", "SPEED", "FOR"), rows)


def _page(found: Offer, reference: str) -> None:
    from sparkcluster import engines
    from sparkcluster.report import size

    playbook, model = found.playbook, found.playbook.model
    features = engines.engine(playbook.engine).api_features(playbook)
    rows = {
        "model": ", ".join(filter(None, [model.label, f"revision {model.revision[:12]}", model.checkpoint])),
        "image": playbook.image or "none: runs on the nodes without a container",
        "Sparks": ", ".join(map(str, found.sparks)) or "it does not fit their memory",
        "weights": size(found.weights_bytes) if found.weights_bytes else "unknown",
        "context": f"{features.context:,} tokens" if features.context else "as the model has it, or memory allows",
        "API": ", ".join(name for name in ("tools", "reasoning", "messages") if getattr(features, name)),
        "overlays": ", ".join(playbook.overlays),
        "file": str(found.path),
    }
    data(paint(playbook.name, "bold"), f"  {playbook.description}")
    for name, text in rows.items():
        if text:
            data(f"{name:<10}{text}")
    for figure in playbook.figures:
        value = " to ".join(map(str, figure.value)) if isinstance(figure.value, list) else str(figure.value)
        about = f"figure    {figure.what} {'about ' if figure.approximate else ''}{value} {figure.unit}"
        data(": ".join(filter(None, [about, figure.when])))
        data(paint(figure.source, "dim"), indent="  ")
    for line in playbook.source:
        data(paint(line, "dim"), indent="  ")
    message(shell("sparkcluster up INVENTORY --playbook", reference), kind="next")
