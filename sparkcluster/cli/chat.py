"""The chat of ``sparkcluster ask`` without a prompt on a terminal."""

from __future__ import annotations

import argparse
import contextlib
import shlex

from sparkcluster.cli.ask import Answer, tell_end, valid
from sparkcluster.cli.common import connect_fleet, load_spec
from sparkcluster.cli.interrupt import forget
from sparkcluster.cli.output import data, message, show_error
from sparkcluster.cli.progress import Waiting
from sparkcluster.errors import PromptTooLong, SparkclusterError
from sparkcluster.inspect.ask import Conversation
from sparkcluster.report import count

_ENDS = frozenset({"exit", "quit", "bye"})
_HELP = "/clear begins a new conversation; exit, quit, bye or Ctrl-D ends the chat; Ctrl-C an answer"


def chat(args: argparse.Namespace) -> int:
    """Ask what is typed, line by line, in one conversation, until ``exit`` or the end of input.

    Raises:
        SparkclusterError: no endpoint was found at the beginning; later errors are shown, and the chat goes on.
    """
    with contextlib.suppress(ImportError):
        import readline

        # Python turns it off; a pasted text of several lines is one prompt with it.
        readline.parse_and_bind("set enable-bracketed-paste on")
    spec = load_spec(args)
    with connect_fleet(spec.inventory) as fleet:
        conversation = Conversation(
            fleet, spec, group=args.group, max_tokens=args.max_tokens, system=args.system and valid(args.system)
        )
        with Waiting(f"querying {count(len(spec.inventory.nodes), 'node')}"):
            endpoint = conversation.find()
        message(f"{endpoint.model} on {spec.inventory.cluster}; /help lists what else can be typed")
        while True:
            try:
                typed = _typed()
                if typed is None:
                    return 0
                if typed:
                    _answer(conversation, typed, args)
            except KeyboardInterrupt:
                forget()
                message()


def _typed() -> str | None:
    """What is typed next; empty for what was a command of the chat or nothing, None at its end."""
    try:
        text = valid(input(">>> ")).strip()
    except EOFError:
        message()
        return None
    except UnicodeDecodeError:
        message("what was typed is no text in the encoding of this terminal")
        return ""
    if text.removeprefix("/") in _ENDS:
        return None
    if text in {"/help", "/?"}:
        message(_HELP)
        return ""
    return text


def _answer(conversation: Conversation, typed: str, args: argparse.Namespace) -> None:
    if typed == "/clear":
        conversation.forget()
        message("this is a new conversation")
        return
    answer = Answer()
    try:
        with Waiting("waiting for the first token") as waiting:

            def show(kind: str, text: str) -> None:
                waiting.end()
                answer.show(kind, text)

            reply = conversation.ask(typed, show)
    except SparkclusterError as error:
        if isinstance(error, PromptTooLong) and conversation.goes_on:
            error.hint = "/clear begins a new conversation"
        elif error.hint:
            error.hint = error.hint.replace("INVENTORY", shlex.quote(str(args.inventory)))
        show_error(error)
        return
    data()
    tell_end(reply, args.max_tokens)
