"""``sparkcluster import``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparkcluster.cli.common import common_flags, emitted, option
from sparkcluster.cli.output import message, paint, write
from sparkcluster.errors import UsageError
from sparkcluster.printable import LINES, shell

if TYPE_CHECKING:
    from sparkcluster.importer import Imported


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``import``."""
    about = "recipe, Compose file, systemd unit, Markdown page, script, or output of docker inspect; - is stdin"
    option(parser, "file FILE?", about)
    option(parser, "--container NAME", "import the engine in this container, instead of a file")
    option(parser, "--node HOST", "where it runs: HOST or USER@HOST (default: this machine)")
    about = "value of a variable, argument (1=VALUE) or placeholder; service=NAME picks a Compose service"
    option(parser, "--define NAME=VALUE*", about)
    option(parser, "--block N", "code block of the page, if several start an engine", int)
    option(parser, "--name N", "name of the playbook (default: the container's or the model's)")
    option(parser, "-o --output OUT", "write it to OUT; - is stdout, the default", Path)
    option(parser, "--force", "overwrite OUT if it exists")
    common_flags(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Print or write the playbook; notes about what was not converted go to stderr."""
    from sparkcluster.importer import convert, defines

    source, text = _text(args)
    return written(args, convert(text, source, name=args.name, defines=defines(args.define), block=args.block))


def written(args: argparse.Namespace, made: Imported, heading: str = "skipped") -> int:
    """Print a new playbook, or write it to ``args.output``, and show its notes; returns the exit code.

    Raises:
        UsageError: the file exists, or cannot be written.
    """
    from sparkcluster import output_file

    file = args.output if args.output != Path("-") else None
    if file is not None:
        if file.exists() and not args.force:
            raise UsageError(f"{file} already exists", hint="add --force to overwrite it")
        output_file.write(file, lambda opened: opened.write(made.text.encode()))
    if emitted(args, {"playbook": made.document, "text": made.text, "left": list(made.notes)}):
        return 0
    if file is None:
        write(sys.stdout, made.text, end="", keep=LINES)
    else:
        message(paint(f"wrote {file}", "good"), f": {next(iter(made.document['model'].values()))}")
    _show_notes(made.notes, heading)
    message("save it as FILE, then " * (file is None) + shell("sparkcluster lint", file or "FILE"), kind="next")
    return 0


def _text(args: argparse.Namespace) -> tuple[str, str]:
    """The name, for messages, and the text of what is imported.

    Raises:
        UsageError: it cannot be read, or not exactly one source is given.
    """
    from sparkcluster.spec import load

    if (args.file is None) == (args.container is None) or (args.node and args.file):
        hint = "sparkcluster import FILE, or sparkcluster import --container NAME --node HOST"
        raise UsageError("give either FILE or --container; --node needs --container", hint=hint)
    if args.container is not None:
        return args.container, _inspected(args)
    if args.file == "-":
        return "the text", load.decode(sys.stdin.buffer.read(load.MAX_BYTES + 1), "the text")
    return Path(args.file).name, load.text(Path(args.file))


def _inspected(args: argparse.Namespace) -> str:
    """The output of ``docker inspect`` for the container, on the machine of ``--node``."""
    from sparkcluster.cli.progress import awaiting
    from sparkcluster.cli.prompts import Terminal
    from sparkcluster.hosts.connect import Address, connect
    from sparkcluster.hosts.resolve import SshSettings
    from sparkcluster.inspect.container import inspected
    from sparkcluster.setup.targets import given

    hosts = given([args.node], SshSettings(), "--node") if args.node else []
    nodes = {each.label: each.address for each in hosts} or {"this machine": Address("localhost", "local")}
    with (
        awaiting(f"reading {args.container}") as waiting,
        Terminal(waiting.paused, silent=args.json) as terminal,
        connect(nodes, terminal) as fleet,
    ):
        return inspected(fleet[next(iter(nodes))], args.container)


def _show_notes(notes: Sequence[str], heading: str) -> None:
    """Show what was skipped, grouped by reason; then what needs attention, since it says what to write where."""
    needs = "[:;] (write|set|copy|build|mount|add|did you|kept|listed) "
    to_check = [note for note in notes if ": skipped" not in note and re.search(needs, note)]
    left: dict[str, list[str]] = {}
    for note in notes:
        if note not in to_check:
            what, _, why = note.replace(": skipped", "").partition(": ")
            left.setdefault(why, []).append(what)
    out = [": ".join(filter(None, [", ".join(names), why])) for why, names in left.items()]
    for title, lines in (paint(heading, "dim"), out), (paint("to check", "warn"), to_check):
        for text in [title, *(f"  {line}" for line in lines)] if lines else ():
            message(text)
