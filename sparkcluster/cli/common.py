"""What the commands share: flags, and making spec and fleet."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkcluster.cli.output import emit_json, message
from sparkcluster.errors import UsageError
from sparkcluster.printable import word

if TYPE_CHECKING:
    from sparkcluster.cli.progress import Shown
    from sparkcluster.facts.probe import Answer
    from sparkcluster.hints import Typed
    from sparkcluster.hosts.fleet import Calls, Fleet
    from sparkcluster.hosts.handshake import Prompts
    from sparkcluster.report import Report
    from sparkcluster.spec import Spec
    from sparkcluster.spec.assignments import Assignments
    from sparkcluster.spec.inventory import Inventory
    from sparkcluster.telemetry.live import Live


INVENTORY_VARIABLE = "SPARKCLUSTER_INVENTORY"
INVENTORY_FILE = "sparkcluster.yaml"


def inventory_argument(parser: argparse.ArgumentParser, *flags: str, playbook: bool = True, model: bool = True) -> None:
    """Add INVENTORY, ``--json``, more common ``flags`` and, unless they are false, ``--playbook`` and ``--model``.

    A command without ``--model`` is about the nodes, or about all models at once.

    ``Parser.read`` decides by :func:`is_inventory` whether a first word is it, and fills it in where it is left out:
    in ``args.inventory`` there is always a path. Arguments of a command after it are added after it.
    """
    about = f"path of the inventory (default: ${INVENTORY_VARIABLE}, else ./{INVENTORY_FILE})"
    option(parser, "inventory INVENTORY?", about, Path)
    if model:
        option(parser, "--model NAME", "this one of the models of the inventory (default: all)")
    if playbook:
        option(parser, "--playbook P", "playbook (name, path or model) instead of the inventory's")
        common_flags(parser, "--set")
    common_flags(parser, "--json", *flags)


def is_inventory(word: str) -> bool:
    """Whether the first word of a command that takes more arguments than INVENTORY is the path of an inventory.

    It is one if it ends as YAML does, has a slash, or names a file. A text with blanks is a prompt unless it names a
    file. An empty file does not count: a shell makes it before ``logs spark-1 > spark-1`` begins.
    """
    named = not any(map(str.isspace, word)) and (word.endswith((".yaml", ".yml")) or "/" in word)
    return named or (os.path.isfile(word) and os.path.getsize(word) > 0)  # noqa: PTH113, PTH202 - any word, valid or not


def default_inventory() -> tuple[Path, str]:
    """The inventory of a command line without one, and why it is used, in words.

    Raises:
        UsageError: there is none, or the variable names no file.
    """
    named = os.environ.get(INVENTORY_VARIABLE)
    path = Path(named).expanduser() if named else Path(INVENTORY_FILE)
    if path.is_file():
        return path, f"from {INVENTORY_VARIABLE}" if named else "in this directory"
    if named:
        hint = f"export {INVENTORY_VARIABLE}=FILE, or unset {INVENTORY_VARIABLE}"
        raise UsageError(f"{INVENTORY_VARIABLE}: {named}: no such file", hint=hint)
    hint = f"give its path, set {INVENTORY_VARIABLE}, or type: sparkcluster discover -o {INVENTORY_FILE}"
    raise UsageError("INVENTORY is missing", hint=hint)


def fill_in_inventory(args: argparse.Namespace, prog: str, words: Sequence[str]) -> None:
    """Use the default inventory, and say which it is unless the output is JSON.

    Raises:
        UsageError: as :func:`default_inventory`; or one of ``words``, the arguments of ``prog``, is an inventory.
    """
    try:
        args.inventory, why = default_inventory()
    except UsageError:
        later = next(filter(is_inventory, words[1:]), None)
        if later is None:
            raise
        raise UsageError("INVENTORY comes first", hint=f"{prog} {word(later)} …") from None
    if not (args.json or args.json_lines):
        message(f"{args.inventory} ({why})", kind="inventory")


def assigned(args: argparse.Namespace) -> Assignments | None:
    """Keys of the playbook that the command line sets; None where it sets none."""
    texts, image = getattr(args, "set", ()), getattr(args, "image", None)
    if not texts and image is None:
        return None
    from sparkcluster.spec.assignments import Assignment, Assignments, read
    from sparkcluster.spec.document import Place

    flags = [Assignment("image", image, Place(0, 0, "--image"))] if image is not None else []
    return Assignments([*map(read, texts), *flags])


def option(
    parser: argparse._ActionsContainer, names: str, about: str, kind: Callable[[str], Any] = str, **more: Any
) -> None:
    """Add a flag, as ``--follow``, or ``-n --tail N`` with a value; or an argument, as ``node NODE``.

    ``?``, ``*`` or ``+`` at the end says how often a value may be given. What ``kind`` raises of it is shown.
    """

    def read(text: str) -> Any:
        try:
            return kind(text)
        except Exception as error:  # noqa: BLE001 - argparse would show the name of this function
            raise argparse.ArgumentTypeError(str(error)) from None

    *flags, metavar = names.split()
    often = metavar[-1] if metavar[-1] in "?*+" else None
    if metavar.startswith("-"):
        parser.add_argument(*flags, metavar, help=about, action="store_true")
    elif often and names.startswith("-"):
        parser.add_argument(*flags, metavar=metavar[:-1], help=about, type=read, action="append", default=[], **more)
    else:
        parser.add_argument(*flags, metavar=metavar.rstrip("?*+"), help=about, type=read, nargs=often, **more)


def number(least: float, most: float = 1e12, kind: type[float] = float) -> Callable[[str], float]:
    """A kind of ``option``: a number from ``least`` to ``most``."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if least <= kind(text) <= most:
                return kind(text)
        raise ValueError(
            f"must be {f'{least:g} or more' if most == 1e12 else f'from {least:g} to {most:g}'}, is {text}"
        )

    return read


def at_least(minimum: int) -> Callable[[str], float]:
    """A kind of ``option``: a whole number that is not below ``minimum``."""
    return number(minimum, kind=int)


_FLAGS: dict[str, dict[str, Any]] = {
    "--json": {"about": "print one JSON document to stdout and nothing else"},
    "--json-lines": {"about": "print events as JSON lines, the result last"},
    "--yes": {"about": "accept unasked what playbook, inventory or release can do, and an image built apart"},
    "-v --verbose": {"about": "also show notes, and why each finding matters"},
    "--no-rollback": {"about": "leave a new release that fails as it is, and write a bundle"},
    "--set KEY=VALUE*": {"about": "playbook's key: args.max-model-len=65536"},
    "--timeout S": {"about": "seconds until the model has to answer (default: of the playbook)", "kind": number(1)},
    "--wait S": {"about": "seconds to wait for another operator's lease", "kind": number(0), "default": 0.0},
    "--min-speed R": {"about": "go back below R times the old speed; 0: off", "kind": number(0, 1), "default": 0.7},
}


def common_flags(parser: argparse.ArgumentParser, *flags: str) -> None:
    """Add flags that several commands have: those of ``_FLAGS``."""
    for flag in flags:
        names = next(names for names in _FLAGS if flag in names.split())
        option(parser, names, **_FLAGS[names])


def emitted(args: argparse.Namespace, document: dict[str, Any]) -> bool:
    """Write the result for ``--json`` or ``--json-lines``; returns whether one of them was given."""
    if (collected := vars(args).get("collected")) is not None:
        collected.append(document)
    elif args.json or args.json_lines:
        emit_json(document, line=args.json_lines)
    return bool(args.json or args.json_lines)


def load_spec(args: argparse.Namespace) -> Spec:
    """The spec of the inventory and playbook on the command line.

    Commands without ``--playbook`` start nothing, such as ``status`` and ``down``.
    """
    import dataclasses

    from sparkcluster.spec.load import load

    playbook = getattr(args, "playbook", None)
    model = vars(args).get("model")
    spec = load(args.inventory, playbook, set_=assigned(args), starts=hasattr(args, "playbook"), model=model)
    if playbook:
        spec = dataclasses.replace(spec, selected={**spec.selected, "playbook": _from_inventory(spec, playbook)})
    given, names = getattr(args, "node", None) or [], [node.label for node in spec.inventory.nodes]
    for name in [given] if isinstance(given, str) else given:
        if name not in names:
            from sparkcluster.suggest import did_you_mean

            hint = did_you_mean(name, names, f"its nodes: {', '.join(names)}")
            raise UsageError(f"{name} is not a node of {args.inventory}", hint=hint)
    return spec


def accepted(args: argparse.Namespace, spec: Spec, report: Report) -> Spec:
    """``spec`` as the user accepted it, who is asked unless ``--yes`` is given.

    Raises:
        FoundErrors: what is written is wrong, such as the name of an argument; nobody was asked.
        UsageError: it is not accepted.
    """
    from sparkcluster.spec import consent

    def check(spec: Spec) -> None:
        from sparkcluster.checks import check_written  # takes long to import, and is needed for a question alone
        from sparkcluster.errors import FoundErrors
        from sparkcluster.findings import has_errors

        findings = check_written(spec)
        if has_errors(findings):
            raise FoundErrors(findings)

    return consent.accept(spec, report, yes=args.yes, check=check)


def _from_inventory(spec: Spec, name: str) -> str:
    """The playbook that ``--playbook NAME`` found from the current directory, as the inventory has to name it."""
    from sparkcluster.spec.library import find

    base, plus, overlays = name.partition("+")
    beside = spec.inventory_path.parent
    with suppress(OSError, UsageError):
        if find(base, [beside]).samefile(spec.playbook_path):
            return name
    return os.path.relpath(spec.playbook_path, beside) + plus + overlays


def typed(args: argparse.Namespace) -> Typed:
    """What the command line chose, for hints."""
    from sparkcluster.hints import Typed

    playbook, image = getattr(args, "playbook", None), getattr(args, "image", None)
    keys = [*(getattr(args, "set", None) or ()), *([f"image={image}"] if image else [])]
    flags = [*(["--playbook", playbook] if playbook else []), *(word for key in keys for word in ("--set", key))]
    return Typed(str(args.inventory), tuple(flags), vars(args).get("model") or "")


@contextmanager
def querying(args: argparse.Namespace, waiting_for: str | None = None) -> Iterator[tuple[Fleet, Spec, Shown]]:
    """Nodes and spec of the command line, for commands that show only what they wait for."""
    spec = load_spec(args)
    with asking(spec, waiting_for) as (fleet, waiting):
        yield fleet, spec, waiting


@contextmanager
def asking(spec: Spec, waiting_for: str | None = None) -> Iterator[tuple[Fleet, Shown]]:
    """All nodes of the inventory, while it is shown what is waited for."""
    from sparkcluster.cli.progress import awaiting
    from sparkcluster.report import count

    text = waiting_for or f"querying {count(len(spec.inventory.nodes), 'node')}"
    with awaiting(text) as waiting, connect_fleet(spec, waiting) as fleet:
        yield fleet, waiting


@contextmanager
def live(args: argparse.Namespace, **more: Any) -> Iterator[Live]:
    """What all models of the inventory do, or that of ``--model``, read again and again; ``more`` is for ``Live``."""
    from sparkcluster.spec.load import load_all
    from sparkcluster.telemetry.live import Live
    from sparkcluster.telemetry.look import whole

    specs = [load_spec(args)] if vars(args).get("model") else load_all(args.inventory, starts=False)
    text = "waiting for all nodes, and a token of every group"
    with asking(whole(specs), text) as (fleet, waiting), Live(fleet, specs, **more) as found:
        waiting.end()
        yield found


@contextmanager
def reporting(args: argparse.Namespace) -> Iterator[tuple[Fleet, Spec, Shown]]:
    """Nodes and spec of the command line, for commands that report steps."""
    from sparkcluster.cli.progress import reporter

    spec, yes = load_spec(args), vars(args).get("yes")
    with (
        reporter(as_json=args.json, json_lines=args.json_lines) as report,
        connect_fleet(spec, report, yes=yes) as fleet,
    ):
        yield fleet, spec, report


def begin_probe(fleet: Fleet, spec: Spec) -> Calls[Answer]:
    """Send the probe to every node; import what judges the answers only then, for nodes take longer than that."""
    from sparkcluster.facts.probe import begin

    # The threads that connect are to get their turn in the middle of imports.
    sys.setswitchinterval(0.0005)
    return begin(fleet, spec)


def connect_fleet(spec: Spec, report: Report, prompts: Prompts | None = None, *, yes: bool | None = None) -> Fleet:
    """All nodes of the inventory, as ``fleet_of``, once what the inventory asks for itself is accepted.

    ``yes`` accepts it unasked; None where the command has no such flag.

    Raises:
        UsageError: it is not accepted.
    """
    from sparkcluster.spec import consent

    consent.accept_inventory(spec, report, yes=yes)
    return fleet_of(spec.inventory, prompts)


def fleet_of(inventory: Inventory, prompts: Prompts | None = None) -> Fleet:
    """All nodes of an accepted inventory; each connects at its first use, and ``prompts`` asks the operator then."""
    from sparkcluster.hosts.connect import Address, connect
    from sparkcluster.hosts.resolve import SshSettings

    ssh = {node.label: SshSettings(**inventory.node_ssh(node).model_dump()) for node in inventory.nodes}
    nodes = {node.label: Address(node.host, node.connection, ssh[node.label]) for node in inventory.nodes}
    return connect(nodes, prompts)
