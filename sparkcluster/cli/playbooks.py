"""``sparkcluster playbooks``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparkcluster.cli.common import at_least, common_flags, emitted, option
from sparkcluster.cli.output import data, message, paint, table
from sparkcluster.errors import UsageError
from sparkcluster.printable import shell

if TYPE_CHECKING:
    from sparkcluster.inspect.playbooks import Offer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``playbooks``."""
    option(parser, "name NAME?", "show one: name, path or model, also with +OVERLAY (default: list the bundled ones)")
    option(parser, "model MODEL?", "with NAME new: write a playbook for this repository or directory")
    option(parser, "--all", "list every playbook, and the overlays (default: one per model)")
    option(parser, "--sparks N", "list playbooks that N Sparks can serve; with NAME, show it for N Sparks", at_least(1))
    option(parser, "--for PURPOSE", "list playbooks for a purpose, such as coding; any other word lists the purposes")
    option(parser, "--sort KEY", "speed: fastest first (default: by name)", choices=("name", "speed"), default="name")
    option(parser, "--measured", "with NAME: also list bench runs of it on this machine")
    option(parser, "--config PATH", "with new: directory of MODEL, or its config.json (default: from the hub)", Path)
    option(parser, "-o --output OUT", "with new: write it to OUT; - is stdout (default)", Path)
    option(parser, "--force", "overwrite OUT if it exists")
    common_flags(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """List the bundled playbooks, show one, or write one for a model that has none."""
    from sparkcluster.inspect import playbooks
    from sparkcluster.spec import library

    if args.name == "new":
        return _new(args)
    if args.model or args.config or args.output or args.force:
        raise UsageError("MODEL, --config, --output and --force belong to new", hint="sparkcluster playbooks new MODEL")
    purpose = vars(args)["for"]
    found = playbooks.offers(args.sparks, purpose) if args.name is None else [playbooks.offer(args.name, args.sparks)]
    if args.sort == "speed":
        found.sort(key=lambda each: -each.decode)
    if args.measured and args.name is None:
        raise UsageError("--measured takes a playbook", hint="sparkcluster playbooks NAME --measured")
    if emitted(args, {"playbooks": [each.as_json() for each in found]}):
        return 0
    if args.name is not None:
        _page(found[0], args)
        return 0
    short = found if args.all or args.sparks else playbooks.one_of_each(found)
    _list(short)
    if args.all:
        message(f"overlays, as in NAME+OVERLAY, for playbooks that list them: {', '.join(library.overlays())}")
    elif len(short) < len(found):
        asked = f" --for {purpose}" if purpose else ""
        message(f"… {len(found) - len(short)} more: sparkcluster playbooks{asked} --all")
    if not found:
        message("no such playbook for one group; for replicas, divide the Sparks into groups: docs/models.md")
    message("SPEED: tokens/s of one request, ~ is an estimate; details: sparkcluster playbooks NAME")
    return 0


def _new(args: argparse.Namespace) -> int:
    from sparkcluster.cli.import_ import written
    from sparkcluster.cli.progress import awaiting
    from sparkcluster.inspect.baseline import baseline

    if args.model is None:
        raise UsageError("new takes a model", hint="sparkcluster playbooks new ORGANISATION/NAME")
    with awaiting(f"reading the headers of {args.model}"):
        name = args.output.stem if args.output and args.output.suffix else None
        made = baseline(args.model, args.config, name)
    return written(args, made, "notes")


def _list(found: Sequence[Offer]) -> None:
    rows = [(each.playbook.name, each.sizes, each.weights, each.speed, each.playbook.use) for each in found]
    table(("PLAYBOOK", "SPARKS", "WEIGHTS", "SPEED", "USE"), rows)


def _page(found: Offer, args: argparse.Namespace) -> None:
    from sparkcluster import engines
    from sparkcluster.inspect import playbooks

    playbook, model = found.playbook, found.playbook.model
    features = engines.engine(playbook.engine).api_features(playbook)
    rows = {
        "model": ", ".join(filter(None, [model.label, f"revision {model.revision[:12]}", model.checkpoint])),
        "image": playbook.image or "none: runs on the nodes without a container",
        "Sparks": found.sizes or "does not fit in memory",
        "weights": found.weights,
        "context": f"{features.context:,} tokens" if features.context else "the model's maximum, or what memory allows",
        "API": ", ".join(name for name in ("tools", "reasoning", "messages") if getattr(features, name)),
        "overlays": ", ".join(playbook.overlays),
        "file": str(found.path),
    }
    data(paint(playbook.name, "bold"), f"  {playbook.description}")
    for name, text in rows.items():
        if text:
            data(f"{name:<10}{text}")
    for figure in playbook.figures:
        data(f"figure    {figure.what} {playbooks.text(figure)}")
        data(paint(figure.source, "dim"), indent="  ")
    for line in playbook.source:
        data("source    ", paint(line, "dim"))
    if args.measured:
        from sparkcluster.bench.record import kept
        from sparkcluster.cli.bench_view import listed

        listed([each for each in kept()[0] if each.playbook == playbook.name])
    message(shell("sparkcluster up INVENTORY --playbook", args.name), kind="next")
