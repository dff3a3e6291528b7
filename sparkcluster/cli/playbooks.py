"""``sparkcluster playbooks``."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparkcluster.cli.common import at_least, common_flags, connect_fleet, default_inventory, emitted
from sparkcluster.cli.output import data, message, paint, table

if TYPE_CHECKING:
    from sparkcluster.inspect.playbooks import Offer
    from sparkcluster.spec.playbook import Figure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``playbooks``."""
    about = "show one: name, path or model, optionally with +OVERLAY (default: list the bundled ones)"
    parser.add_argument("name", metavar="NAME", nargs="?", help=about)
    about = "list what one group of N Sparks can serve; with NAME, show what it is on N"
    parser.add_argument("--sparks", metavar="N", type=at_least(1), help=about)
    about = "inventory whose nodes are asked which weights they have (default: as other commands)"
    parser.add_argument("--inventory", metavar="INV", type=Path, help=about)
    common_flags(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """List the bundled playbooks, or show one."""
    from sparkcluster.inspect import playbooks

    found = playbooks.offers(args.sparks) if args.name is None else [playbooks.offer(args.name, args.sparks)]
    found = _staged(args, found)
    if emitted(args, {"playbooks": [each.as_json() for each in found]}):
        return 0
    if args.name is not None:
        _page(found[0], args.name, args.inventory)
        return 0
    if found:
        _listing(found)
    else:
        message(f"no bundled playbook is for {args.sparks} Sparks")
    if args.sparks is None:
        _overlays()
    elif args.sparks > 1:
        message("with groups of one Spark in the inventory: sparkcluster playbooks --sparks 1")
    message("figures and sources: sparkcluster playbooks NAME")
    return 0


def _staged(args: argparse.Namespace, found: list[Offer]) -> list[Offer]:
    """``found`` with the nodes of the inventory that have the weights; without where no inventory is known.

    Raises:
        UsageError: the inventory that was typed cannot be used; of the default one a warning says that.
    """
    from sparkcluster.cli.progress import Waiting
    from sparkcluster.errors import SparkclusterError, UsageError
    from sparkcluster.inspect import playbooks
    from sparkcluster.report import count
    from sparkcluster.spec.load import load_inventory

    path = args.inventory
    if path is None:
        try:
            path, why = default_inventory()
        except UsageError:
            return found
        if not args.json:
            message(f"inventory: {path} ({why})")
    try:
        inventory = load_inventory(path)
        with connect_fleet(inventory) as fleet, Waiting(f"querying {count(len(inventory.nodes), 'node')}"):
            found, errors = playbooks.staged(fleet, inventory, found)
    except SparkclusterError as error:
        if args.inventory is not None:
            raise
        errors = {str(path): error.message.splitlines()[0].removeprefix(f"{path}:")}
    for where, text in errors.items():
        message(f"warning: which weights are staged is unknown: {where}: {text.strip()}")
    return found


def _listing(found: Sequence[Offer]) -> None:
    """One line for each playbook in a pipe and on a wide terminal; elsewhere its description is below it."""
    import shutil

    known = any(each.staged is not None for each in found)
    columns = ("PLAYBOOK", "SPARKS", "WEIGHTS", *(["STAGED ON"] if known else []))
    rows = [
        (each.playbook.name, _numbers(each.sparks), _weights(each), *([_on(each)] if known else [])) for each in found
    ]
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)) for row in (columns, *rows)]
    texts = ["DESCRIPTION", *(each.playbook.description for each in found)]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if width is None or max(len(line) + 2 + len(text) for line, text in zip(lines, texts, strict=True)) <= width:
        whole = zip(rows, texts[1:], strict=True)
        table((*columns, texts[0]), [(*row, text) for row, text in whole])
        return
    data(paint(lines[0].rstrip(), "bold"))
    for line, text in zip(lines[1:], texts[1:], strict=True):
        data(line.rstrip())
        for part in textwrap.wrap(text, width - 2, break_on_hyphens=False):
            data(f"  {part}")


def _overlays() -> None:
    from sparkcluster.spec import library

    message("overlays, used as NAME+OVERLAY with playbooks that accept them:")
    message(f"  {', '.join(overlay for overlay in library.overlays() if not overlay.startswith('dflash-'))}")
    message(f"  {', '.join(overlay for overlay in library.overlays() if overlay.startswith('dflash-'))}")


def _page(found: Offer, reference: str, inventory: Path | None) -> None:
    """One playbook, within the width of the terminal; what is to be pasted stays on one line."""
    from sparkcluster import engines
    from sparkcluster.linting import stand_in
    from sparkcluster.spec import powers

    playbook = found.playbook
    model = playbook.model
    data(paint(playbook.name, "bold"))
    _line("", playbook.description)
    data()
    _line("model", ", ".join(filter(None, [model.label, _revision(model.revision), model.checkpoint])))
    _line("image", playbook.image or "none: runs on the nodes without a container")
    _line("Sparks", _numbers(found.sparks) or "it does not fit their memory")
    _line("weights", _weights(found) + _each(found))
    features = engines.engine(playbook.engine).api_features(playbook)
    _line("context", f"{features.context:,} tokens" if features.context else "as the model has it, or memory allows")
    offered = {"tools": "tool calls", "reasoning": "reasoning apart from the answer", "messages": "Messages API"}
    _line("can", ", ".join(text for name, text in offered.items() if getattr(features, name)) or "completions alone")
    if playbook.overlays:
        _line("overlays", ", ".join(playbook.overlays))
    request = playbook.request.model_dump(exclude_defaults=True)
    advice = request.pop("note", None)
    asked = ", ".join(f"{key} {value}" for key, value in request.items())
    if asked or advice:
        _line("request", "; ".join(filter(None, [asked, advice])))
    if found.staged is not None:
        _line("staged", ", ".join(found.staged) or "on no node")
    _line("file", str(found.path))
    if playbook.figures:
        data()
        data(paint("figures", "bold"))
    for figure in playbook.figures:
        _figure(figure)
    if playbook.source:
        data()
        data(paint("sources", "bold"))
    for source in playbook.source:
        _line("", source)
    data()
    for line in powers.lines(playbook, stand_in(playbook, 1)):
        data(line)
    message(f"memory: sparkcluster fit {shlex.quote(reference)}")
    where = "" if found.staged is not None and inventory is None else f" {shlex.quote(str(inventory or 'INVENTORY'))}"
    message(f"sparkcluster up{where} --playbook {shlex.quote(reference)}", kind="next")


def _line(name: str, text: str, indent: int = 2) -> None:
    """``name`` and ``text``, which continues below itself; a URL or path is not broken."""
    from sparkcluster.cli.findings_view import width
    from sparkcluster.printable import clean

    indent = len("overlays  ") if name else indent
    lines = textwrap.wrap(clean(text), width() - indent, break_long_words=False, break_on_hyphens=False) or [""]
    for at, line in enumerate(lines):
        data(f"{name if not at else '':<{indent}}{line}")


def _figure(figure: Figure) -> None:
    value = " to ".join(map(str, figure.value)) if isinstance(figure.value, list) else str(figure.value)
    about = f"{figure.what} {'about ' if figure.approximate else ''}{value} {figure.unit}"
    _line("", f"{about}: {figure.when}" if figure.when else about)
    _line("", figure.source, 4)


def _revision(revision: str) -> str:
    return f"revision {revision[:12] if len(revision) == len('f' * 40) else revision}"


def _numbers(sparks: Sequence[int]) -> str:
    return ", ".join(map(str, sparks))


def _weights(found: Offer) -> str:
    from sparkcluster.report import size

    return "unknown" if found.weights_bytes is None else size(found.weights_bytes)


def _each(found: Offer) -> str:
    """What each of several Sparks holds of them."""
    from sparkcluster.report import size

    parts = [f"{size(amount)} on each of {nodes}" for nodes, amount in found.each_bytes.items() if nodes > 1]
    return f"; {', '.join(parts)}" if parts else ""


def _on(found: Offer) -> str:
    return ", ".join(found.staged or ()) or "none"
