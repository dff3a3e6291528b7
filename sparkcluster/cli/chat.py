"""The chat of ``sparkcluster ask`` without a prompt on a terminal."""

from __future__ import annotations

import argparse
import contextlib

from sparkcluster.cli.ask_view import tell_end, valid, writer
from sparkcluster.cli.common import asking, load_spec
from sparkcluster.cli.interrupt import forget
from sparkcluster.cli.output import message, paint, show_error
from sparkcluster.cli.progress import awaiting
from sparkcluster.errors import PromptTooLong, SparkclusterError
from sparkcluster.inspect.ask import Conversation

_ENDS = frozenset({"exit", "quit", "bye"})
_HELP = "/clear starts a new conversation; exit, quit, bye or Ctrl-D ends the chat; Ctrl-C an answer"


def chat(args: argparse.Namespace) -> int:
    """Ask each line that is typed, in one conversation, until ``exit`` or the end of input.

    Raises:
        SparkclusterError: no endpoint was found at the start; later errors are shown and the chat continues.
    """
    with contextlib.suppress(ImportError):
        import readline

        # Python turns it off; with it, a pasted text of several lines is one prompt.
        readline.parse_and_bind("set enable-bracketed-paste on")
    spec, system = load_spec(args), args.system and valid(args.system)
    with asking(spec) as (fleet, waiting):
        conversation = Conversation(fleet, spec, group=args.group, max_tokens=args.max_tokens, system=system)
        endpoint = conversation.find()
        waiting.end()
        message(paint(endpoint.model, "bold"), f" on {spec.inventory.cluster}; /help lists the commands")
        while True:
            try:
                typed = valid(input(">>> ")).strip()
                if typed.removeprefix("/") in _ENDS:
                    return 0
                _act(conversation, typed)
            except EOFError:
                message()
                return 0
            except KeyboardInterrupt:
                forget()
                message()


def _act(conversation: Conversation, typed: str) -> None:
    """Run what was ``typed``: a command of the chat, or a prompt."""
    if typed in {"/help", "/?"}:
        message(_HELP)
    elif typed == "/clear":
        conversation.forget()
        message("new conversation")
    elif typed:
        try:
            with awaiting("waiting for the first token") as waiting:
                reply = conversation.ask(typed, writer(waiting))
        except SparkclusterError as error:
            if isinstance(error, PromptTooLong):
                error.hint = f"/clear starts a new conversation; or {error.hint}"
            show_error(error)
        else:
            tell_end(reply)
