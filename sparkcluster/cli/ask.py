"""``sparkcluster ask``."""

from __future__ import annotations

import argparse
import sys

from sparkcluster.cli.ask_view import tell_end, valid, writer
from sparkcluster.cli.common import at_least, emitted, inventory_argument, option, querying
from sparkcluster.errors import UsageError

# More than any context holds, so the engine refuses what is cut off here; the node accepts documents of 16 MB.
_PROMPT_BYTES = 8_000_000
_EXAMPLE = 'sparkcluster ask INVENTORY "Hello"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``ask``."""
    inventory_argument(parser, playbook=False, model="default: the first chat model")
    about = "the prompt; - reads standard input (default: standard input, or a chat on a terminal)"
    option(parser, "prompt PROMPT*", about)
    option(parser, "--system TEXT", "system prompt")
    option(parser, "--group G", "group to query (default: the first)")
    about = "maximum tokens of an answer (default: request.max_tokens of the playbook, else 2048)"
    option(parser, "--max-tokens N", about, at_least(1))


def run(args: argparse.Namespace) -> int:
    """Stream one completion to stdout and its speed to stderr; or chat."""
    if not args.prompt and sys.stdin is not None and sys.stdin.isatty():
        if args.json or not sys.stdout.isatty():
            raise UsageError("PROMPT is missing", hint=_EXAMPLE)
        from sparkcluster.cli.chat import chat

        return chat(args)
    prompt = _prompt(args)
    from sparkcluster.inspect.ask import Conversation, document

    with querying(args, "waiting for the first token") as (fleet, spec, waiting):
        asked = Conversation(fleet, spec, group=args.group, max_tokens=args.max_tokens, system=args.system)
        reply = asked.ask(prompt, (lambda *_: waiting.end()) if args.json else writer(waiting))
    if not emitted(args, document(reply)):
        tell_end(reply)
    return 0


def _prompt(args: argparse.Namespace) -> str:
    """The prompt of the command line; ``-`` and no prompt read standard input."""
    parts = [_standard_input() if word == "-" else word for word in args.prompt or ["-"]]
    text = valid(" ".join(parts)).strip()
    if not text:
        raise UsageError("PROMPT is empty", hint=_EXAMPLE)
    return text


def _standard_input() -> str:
    return sys.stdin.buffer.read(_PROMPT_BYTES).decode(errors="replace") if sys.stdin else ""
