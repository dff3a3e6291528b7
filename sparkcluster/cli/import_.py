"""``sparkcluster import``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sparkcluster.cli.common import common_flags
from sparkcluster.cli.output import emit_json, message, write
from sparkcluster.printable import LINES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``import``."""
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="a recipe in YAML or JSON, a Compose file, a systemd unit, a Markdown page, a script with the engine's "
        "command, or the output of docker inspect NAME IMAGE; - is stdin",
    )
    parser.add_argument(
        "--container", metavar="NAME", help="import the engine that runs in this container, instead of a file"
    )
    parser.add_argument(
        "--node", metavar="HOST", help="where the container runs: HOST or USER@HOST for SSH (default: this machine)"
    )
    parser.add_argument(
        "--define",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="value of a variable, an argument (1=VALUE) or a placeholder that the text does not set; service=NAME "
        "chooses a Compose file's service; repeatable",
    )
    parser.add_argument(
        "--block", metavar="N", type=int, help="code block of the page to import, if several start an engine"
    )
    parser.add_argument("--name", metavar="N", help="name of the playbook (default: the container's or the model's)")
    parser.add_argument(
        "-o", "--output", metavar="OUT", type=_file, help="write the playbook to OUT instead of stdout; - is stdout"
    )
    parser.add_argument("--force", action="store_true", help="overwrite OUT if it exists")
    common_flags(parser, "--json")


def _file(text: str) -> Path | None:
    """The file of ``-o``; None for standard output."""
    return None if text == "-" else Path(text)


def _text(args: argparse.Namespace) -> tuple[str, str]:
    """What is imported: its name in messages, and its text.

    Raises:
        UsageError: it cannot be read, or what it is is not given once.
    """
    from sparkcluster.errors import UsageError
    from sparkcluster.spec import load

    if (args.file is None) == (args.container is None) or (args.node and args.file):
        hint = "sparkcluster import FILE, or sparkcluster import --container NAME --node HOST"
        raise UsageError("give either FILE or --container", hint=hint)
    if args.container is not None:
        return args.container, _inspected(args)
    if args.file == "-":
        return "the text", load.decode(sys.stdin.buffer.read(load.MAX_BYTES + 1), "the text")
    return Path(args.file).name, load.text(Path(args.file))


def _inspected(args: argparse.Namespace) -> str:
    """What Docker says of the container, on the machine that was named."""
    from sparkcluster.cli.progress import Waiting
    from sparkcluster.cli.prompts import Terminal
    from sparkcluster.hosts.connect import Address, connect
    from sparkcluster.hosts.resolve import SshSettings
    from sparkcluster.inspect.container import inspected
    from sparkcluster.setup.targets import given

    nodes = {"this machine": Address("localhost", "local")}
    if args.node is not None:
        nodes = {each.label: each.address for each in given([args.node], SshSettings(), "--node")}
    with (
        Waiting(f"reading {args.container}") as waiting,
        Terminal(waiting, silent=args.json) as terminal,
        connect(nodes, terminal) as fleet,
    ):
        return inspected(fleet[next(iter(nodes))], args.container)


def run(args: argparse.Namespace) -> int:
    """Print or write the playbook; what could not be carried over goes to stderr."""
    from sparkcluster.errors import UsageError
    from sparkcluster.importer import convert, defines
    from sparkcluster.linting import stand_in
    from sparkcluster.spec import Playbook, powers
    from sparkcluster.spec.document import parse

    source, text = _text(args)
    made = convert(text, source, name=args.name, defines=defines(args.define), block=args.block)
    if args.output is not None:
        try:
            with args.output.open("w" if args.force else "x", encoding="utf-8") as file:
                file.write(made.text)
        except FileExistsError:
            raise UsageError(f"{args.output} already exists", hint="add --force to overwrite it") from None
        except OSError as error:
            raise UsageError(
                f"{args.output} cannot be written: {error.strerror}", hint="give -o another path"
            ) from None
    if args.json:
        emit_json({"playbook": made.document, "text": made.text, "left": list(made.notes)})
        return 0
    if args.output is None:
        write(sys.stdout, made.text, end="", keep=LINES)
    for line in made.notes:
        message(f"not imported, or to be reviewed: {line}")
    playbook = Playbook.model_validate(parse(made.text, source).data)
    for line in powers.lines(playbook, stand_in(playbook, 1)):
        message(line)
    if args.output is not None:
        message(f"wrote {args.output}; next: sparkcluster lint {args.output}")
    return 0
