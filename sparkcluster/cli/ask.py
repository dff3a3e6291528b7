"""``sparkcluster ask``."""

from __future__ import annotations

import argparse
import sys

from sparkcluster.cli.common import at_least, emitted, inventory_argument, querying
from sparkcluster.cli.output import coloured, note, say, write
from sparkcluster.printable import LINES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``ask``."""
    inventory_argument(parser, playbook=False)
    parser.add_argument("prompt", metavar="PROMPT", help="the prompt")
    parser.add_argument("--group", metavar="G", help="group to query (default: the first)")
    parser.add_argument(
        "--max-tokens", metavar="N", type=at_least(1), default=512, help="maximum tokens in the answer (default: 512)"
    )


def run(args: argparse.Namespace) -> int:
    """Stream one completion to stdout and its speed to stderr."""
    from sparkcluster.inspect.ask import ask, document, speed

    if not args.prompt.strip():
        from sparkcluster.errors import UsageError

        raise UsageError("PROMPT is empty", hint=f'sparkcluster ask {args.inventory} "Hello"')
    thinking = False

    def show(kind: str, text: str) -> None:
        nonlocal thinking
        waiting.end()
        if args.json:
            return
        if kind == "reasoning":
            thinking = True
            write(sys.stderr, *coloured(text), end="", keep=LINES)
            sys.stderr.flush()
            return
        if thinking:
            thinking = False
            note()
        write(sys.stdout, *coloured(text), end="", keep=LINES)
        sys.stdout.flush()

    with querying(args, "waiting for the first token") as (fleet, spec, waiting):
        reply = ask(fleet, spec, args.prompt, show, group=args.group, max_tokens=args.max_tokens)
    if not emitted(args, document(reply)):
        say()
        note(speed(reply))
    return 0
