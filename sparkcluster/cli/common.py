"""Shared by the commands: flags, and making the spec and the fleet."""

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
    from sparkcluster.hints import CommandLine
    from sparkcluster.hosts.fleet import Calls, Fleet
    from sparkcluster.hosts.handshake import Prompts
    from sparkcluster.report import Report
    from sparkcluster.spec import Spec
    from sparkcluster.spec.assignments import Assignments
    from sparkcluster.spec.inventory import Inventory
    from sparkcluster.telemetry.live import Live


INVENTORY_VARIABLE = "SPARKCLUSTER_INVENTORY"
INVENTORY_FILE = "sparkcluster.yaml"


def inventory_argument(
    parser: argparse.ArgumentParser, *flags: str, playbook: bool = True, model: str = "default: all", one: str = ""
) -> None:
    """Add INVENTORY, ``--json``, more common ``flags`` and, unless they are false, ``--playbook`` and ``--model``.

    ``one`` lists further flags that are for one model. A command without ``--model`` is about the nodes, or about all
    models together.

    ``Parser.read`` fills in INVENTORY if it is omitted (see :func:`is_inventory`), so ``args.inventory`` is always a
    path. Add other positional arguments after this call.
    """
    about = f"path of the inventory (default: ${INVENTORY_VARIABLE}, else ./{INVENTORY_FILE})"
    option(parser, "inventory INVENTORY?", about, Path)
    if model:
        alone = ", ".join(filter(None, ["--playbook, --set" if playbook else "", one]))
        model += f"; required with {alone}" if alone else ""
        option(parser, "--model NAME", f"one of the inventory's models ({model})")
    if playbook:
        option(parser, "--playbook P", "playbook (name, path or model) instead of the inventory's")
        common_flags(parser, "--set")
    common_flags(parser, "--json", *flags)


def is_inventory(word: str) -> bool:
    """Whether the first word of a command that takes more arguments than INVENTORY is the path of an inventory.

    It is if it ends in .yaml or .yml, has a slash, or names a file. A text with blanks is a prompt unless it names a
    file. An empty file does not count: in ``logs spark-1 > spark-1`` the shell creates it first.
    """
    named = not any(map(str.isspace, word)) and (word.endswith((".yaml", ".yml")) or "/" in word)
    return named or (os.path.isfile(word) and os.path.getsize(word) > 0)  # noqa: PTH113, PTH202 - any word, valid or not


def default_inventory(missing: str = "INVENTORY") -> tuple[Path, str]:
    """The default inventory, and where it comes from, as text; ``missing`` is the argument that was omitted.

    Raises:
        UsageError: there is none, or the variable names a file that does not exist.
    """
    named = os.environ.get(INVENTORY_VARIABLE)
    path = Path(named).expanduser() if named else Path(INVENTORY_FILE)
    if path.is_file():
        return path, f"from {INVENTORY_VARIABLE}" if named else "in this directory"
    if named:
        hint = f"export {INVENTORY_VARIABLE}=FILE, or unset {INVENTORY_VARIABLE}"
        raise UsageError(f"{INVENTORY_VARIABLE}: {named}: no such file", hint=hint)
    hint = f"give its path, set {INVENTORY_VARIABLE}, or type: sparkcluster discover -o {INVENTORY_FILE}"
    raise UsageError(f"{missing} is missing", hint=hint)


def fill_in_inventory(args: argparse.Namespace, prog: str, words: Sequence[str]) -> None:
    """Use the default inventory, and show which one unless the output is JSON.

    Raises:
        UsageError: as :func:`default_inventory`; or ``words``, the arguments of ``prog``, have an inventory later on.
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
    """Playbook keys set on the command line; None if there are none."""
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
    """Add a flag, ``--follow`` or with a value ``-n --tail N``, or an argument, ``node NODE``.

    A trailing ``?``, ``*`` or ``+`` says how often a value may be given. The message of an error in ``kind`` is shown.
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
        more |= {"default": []} if often == "*" else {}  # else argparse lists it as required
        parser.add_argument(*flags, metavar=metavar.rstrip("?*+"), help=about, type=read, nargs=often, **more)


def number(least: float, most: float = 1e12, kind: type[float] = float) -> Callable[[str], float]:
    """Converter for ``option``: a number from ``least`` to ``most``."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if least <= kind(text) <= most:
                return kind(text)
        limits = f", {least:g} or more" if most == 1e12 else f" from {least:g} to {most:g}"
        raise ValueError(f"must be a {'whole ' * (kind is int)}number{limits}")

    return read


def at_least(minimum: int) -> Callable[[str], float]:
    """Converter for ``option``: a whole number of at least ``minimum``."""
    return number(minimum, kind=int)


_FLAGS: dict[str, dict[str, Any]] = {
    "--json": {"about": "print one JSON document to stdout and nothing else"},
    "--json-lines": {"about": "print events as JSON lines, the result last"},
    "--yes": {"about": "answer yes to questions about permissions and a changed image"},
    "-v --verbose": {"about": "also show findings of severity info, and why each finding matters"},
    "--no-rollback": {"about": "on failure, keep the new release and write a bundle"},
    "--set KEY=VALUE*": {"about": "override a playbook key: args.max-model-len=65536"},
    "--timeout S": {"about": "seconds to wait for the model (default: the playbook's)", "kind": number(1)},
    "--wait S": {"about": "seconds to wait for another operator's lease", "kind": number(0), "default": 0.0},
}


def common_flags(parser: argparse.ArgumentParser, *flags: str) -> None:
    """Add flags of ``_FLAGS``, which several commands share."""
    for flag in flags:
        names = next(names for names in _FLAGS if flag in names.split())
        option(parser, names, **_FLAGS[names])


def emitted(args: argparse.Namespace, document: dict[str, Any]) -> bool:
    """Write the result if ``--json`` or ``--json-lines`` was given; returns whether it was."""
    if (collected := vars(args).get("collected")) is not None:
        collected.append(document)
    elif args.json or args.json_lines:
        emit_json(document, line=args.json_lines)
    return bool(args.json or args.json_lines)


def load_spec(args: argparse.Namespace) -> Spec:
    """The spec of the inventory and playbook on the command line.

    Commands without ``--playbook``, such as ``status`` and ``down``, start nothing.
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
    """``spec`` as accepted by the user, who is asked unless ``--yes`` is given.

    Raises:
        FoundErrors: the files have errors, such as an unknown argument; the user was not asked.
        UsageError: the user did not accept it.
    """
    from sparkcluster.spec import consent

    def check(spec: Spec) -> None:
        from sparkcluster.checks import check_written  # slow to import; only needed before a question
        from sparkcluster.errors import FoundErrors
        from sparkcluster.findings import has_errors

        findings = check_written(spec)
        if has_errors(findings):
            raise FoundErrors(findings, "nothing was changed")

    return consent.accept(spec, report, yes=args.yes, check=check)


def _from_inventory(spec: Spec, name: str) -> str:
    """``--playbook NAME``, relative to the inventory instead of the current directory."""
    from sparkcluster.spec.library import find

    base, plus, overlays = name.partition("+")
    beside = spec.inventory_path.parent
    with suppress(OSError, UsageError):
        if find(base, [beside]).samefile(spec.playbook_path):
            return name
    return os.path.relpath(spec.playbook_path, beside) + plus + overlays


def typed(args: argparse.Namespace) -> CommandLine:
    """What was typed on the command line, for hints."""
    from sparkcluster.hints import CommandLine

    playbook, image = getattr(args, "playbook", None), getattr(args, "image", None)
    keys = [*(getattr(args, "set", None) or ()), *([f"image={image}"] if image else [])]
    flags = [*(["--playbook", playbook] if playbook else []), *(word for key in keys for word in ("--set", key))]
    return CommandLine(str(args.inventory), tuple(flags), vars(args).get("model") or "")


@contextmanager
def querying(args: argparse.Namespace, waiting_for: str | None = None) -> Iterator[tuple[Fleet, Spec, Shown]]:
    """Fleet and spec of the command line, for commands that show only what they wait for."""
    spec = load_spec(args)
    with asking(spec, waiting_for) as (fleet, waiting):
        yield fleet, spec, waiting


@contextmanager
def asking(spec: Spec, waiting_for: str | None = None) -> Iterator[tuple[Fleet, Shown]]:
    """The fleet of the inventory; shows what is waited for."""
    from sparkcluster.cli.progress import awaiting
    from sparkcluster.report import count

    text = waiting_for or f"querying {count(len(spec.inventory.nodes), 'node')}"
    with awaiting(text) as waiting, connect_fleet(spec, waiting) as fleet:
        yield fleet, waiting


@contextmanager
def live(args: argparse.Namespace, **more: Any) -> Iterator[Live]:
    """Live readings of all models of the inventory, or of ``--model``; ``more`` is passed to ``Live``."""
    from sparkcluster.spec.load import load_all
    from sparkcluster.telemetry.check import whole
    from sparkcluster.telemetry.live import Live

    specs = [load_spec(args)] if vars(args).get("model") else load_all(args.inventory, starts=False)
    text = "waiting for all nodes, and a token from every group"
    with asking(whole(specs), text) as (fleet, waiting), Live(fleet, specs, **more) as found:
        waiting.end()
        yield found


@contextmanager
def reporting(args: argparse.Namespace) -> Iterator[tuple[Fleet, Spec, Shown]]:
    """Fleet and spec of the command line, for commands that report steps."""
    from sparkcluster.cli.progress import reporter

    spec, yes = load_spec(args), vars(args).get("yes")
    with (
        reporter(as_json=args.json, json_lines=args.json_lines) as report,
        connect_fleet(spec, report, yes=yes) as fleet,
    ):
        yield fleet, spec, report


def begin_probe(fleet: Fleet, spec: Spec) -> Calls[Answer]:
    """Send the probe to every node; the modules that judge the answers are imported while the nodes work."""
    from sparkcluster.facts.probe import begin

    # Let the threads that connect run during imports.
    sys.setswitchinterval(0.0005)
    return begin(fleet, spec)


def connect_fleet(spec: Spec, report: Report, prompts: Prompts | None = None, *, yes: bool | None = None) -> Fleet:
    """The fleet of the inventory (``fleet_of``), after the user accepted what the inventory asks for.

    ``yes`` accepts without asking; None if the command has no such flag.

    Raises:
        UsageError: the user did not accept it.
    """
    from sparkcluster.spec import consent

    consent.accept_inventory(spec, report, yes=yes)
    return fleet_of(spec.inventory, prompts)


def fleet_of(inventory: Inventory, prompts: Prompts | None = None) -> Fleet:
    """The fleet of an accepted inventory; a node connects on first use, and ``prompts`` asks the operator then."""
    from sparkcluster.hosts.connect import Address, connect
    from sparkcluster.hosts.resolve import SshSettings

    ssh = {node.label: SshSettings(**inventory.node_ssh(node).model_dump()) for node in inventory.nodes}
    nodes = {node.label: Address(node.host, node.connection, ssh[node.label]) for node in inventory.nodes}
    return connect(nodes, prompts)
