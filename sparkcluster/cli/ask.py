"""``sparkcluster ask``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from sparkcluster.cli.common import at_least, emitted, inventory_argument, querying
from sparkcluster.cli.output import data, log_colours, message, write
from sparkcluster.printable import LINES

if TYPE_CHECKING:
    from sparkcluster.facts.running import Reply

# The node takes documents of 16 MB, and no context is that long.
_PROMPT_BYTES = 8_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``ask``."""
    inventory_argument(parser, playbook=False)
    parser.add_argument(
        "prompt",
        metavar="PROMPT",
        nargs="*",
        help="the prompt, its words joined; - stands for standard input (without PROMPT: standard input, or a chat on a"
        " terminal)",
    )
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    parser.add_argument("--group", metavar="G", help="group to query (default: the first)")
    parser.add_argument(
        "--max-tokens",
        metavar="N",
        type=at_least(1),
        help="maximum tokens in an answer (default: 512, or what the context leaves)",
    )


def run(args: argparse.Namespace) -> int:
    """Stream one completion to stdout and its speed to stderr; or chat."""
    if not args.prompt and _is_terminal(sys.stdin):
        if args.json or not _is_terminal(sys.stdout):
            raise _missing(args, "PROMPT is missing")
        from sparkcluster.cli.chat import chat

        return chat(args)
    prompt = _prompt(args)
    from sparkcluster.inspect.ask import ask, document

    answer = Answer(silent=args.json)
    with querying(args, "waiting for the first token") as (fleet, spec, waiting):

        def show(kind: str, text: str) -> None:
            waiting.end()
            answer.show(kind, text)

        reply = ask(fleet, spec, prompt, show, group=args.group, max_tokens=args.max_tokens, system=args.system)
    if not emitted(args, document(reply)):
        data()
        tell_end(reply, args.max_tokens)
    return 0


class Answer:
    """Writes an answer as it comes: its content to stdout, the reasoning before it to stderr."""

    def __init__(self, *, silent: bool = False) -> None:
        self._silent = silent
        self._reasons = False

    def show(self, kind: str, text: str) -> None:
        """Write a piece of ``content`` or ``reasoning``."""
        if self._silent:
            return
        stream = sys.stdout
        if kind == "reasoning":
            self._reasons, stream = True, sys.stderr
        elif self._reasons:
            self._reasons = False
            message()
        write(stream, *log_colours(text), end="", keep=LINES)
        stream.flush()


def tell_end(reply: Reply, max_tokens: int | None) -> None:
    """Say how fast the answer came, and that it ended at the limit of tokens if it did."""
    from sparkcluster.inspect.ask import cut, speed

    message(speed(reply))
    if (said := cut(reply, max_tokens)) is not None:
        message(said)


def valid(text: str) -> str:
    """``text`` without what is no text: bytes that the locale could not decode."""
    return text.encode(errors="replace").decode()


def _prompt(args: argparse.Namespace) -> str:
    """The prompt of the command line, with standard input where it is ``-`` or left out."""
    parts: list[str] = []
    joins = False
    for word in args.prompt or ["-"]:
        if word == "-":
            parts.append(_standard_input(args).strip("\r\n"))
        elif joins:
            parts[-1] += f" {word}"
        else:
            parts.append(word)
        joins = word != "-"
    text = valid("\n".join(parts))
    if not text.strip():
        raise _missing(args, "PROMPT is empty")
    return text


def _standard_input(args: argparse.Namespace) -> str:
    if sys.stdin is None:
        raise _missing(args, "PROMPT is missing")
    read = getattr(sys.stdin, "buffer", sys.stdin).read(_PROMPT_BYTES + 1)
    if len(read) > _PROMPT_BYTES:
        raise _missing(args, f"the prompt on standard input has more than {_PROMPT_BYTES / 1e6:g} MB")
    return read.decode(errors="replace") if isinstance(read, bytes) else str(read)


def _missing(args: argparse.Namespace, message: str) -> Exception:
    import shlex

    from sparkcluster.errors import UsageError

    return UsageError(message, hint=f'sparkcluster ask {shlex.quote(str(args.inventory))} "Hello"')


def _is_terminal(stream: object) -> bool:
    return stream is not None and bool(getattr(stream, "isatty", bool)())
