"""argparse whose errors are raised instead of printed, with hints."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from sparkcluster.cli.commands import COMMANDS, help_of, module
from sparkcluster.errors import UsageError
from sparkcluster.suggest import did_you_mean


class Parser(argparse.ArgumentParser):
    """Parser of one command."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})
        self.set_defaults(json=False, json_lines=False)

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the command line ``words``.

        Raises:
            UsageError: an unknown flag, a missing or extra argument, or an invalid value.
        """
        flags, rest = self.split(words)
        lacking = self._lacks_inventory(rest)
        if lacking:
            rest.insert(0, "")
        # argparse ignores an optional argument after a flag, as in logs INVENTORY -f NODE.
        parsed, unknown = self.parse_known_args([*flags, *(["--"] if rest else []), *rest])
        if unknown:
            self._refuse(unknown[0])
        if lacking:
            from sparkcluster.cli.common import fill_in_inventory

            fill_in_inventory(parsed, self.prog, rest[1:])
        return parsed

    def split(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Split ``words`` into flags with their values, and arguments; a command with subcommands has only flags.

        Raises:
            UsageError: an unknown long flag: the word after it could be its value or an argument.
        """
        if self._subparsers is not None:
            return list(words), []
        flags: list[str] = []
        rest: list[str] = []
        queue = iter(words)
        for word in queue:
            if word == "--":
                rest += queue
            elif not word.startswith("-") or word == "-" or self._is_text(word):
                rest.append(word)
            elif word.startswith("--") and word.partition("=")[0] not in self._option_string_actions:
                self._refuse(word)
            else:
                flags.append(word)
                if self.wants_value(word):
                    flags += itertools.islice(queue, 1)
        return flags, rest

    def _refuse(self, word: str) -> NoReturn:
        flag = word.partition("=")[0]
        if flag.startswith("-"):
            hint = did_you_mean(flag, sorted(self._option_string_actions), f"{self.prog} --help")
            raise UsageError(f"unknown flag of {self.prog}: {flag[:60]}", hint=hint)
        playbook = word.endswith((".yaml", ".yml")) and "--playbook" in self._option_string_actions
        hint = f"did you mean --playbook {word[:60]}?" if playbook else f"{self.prog} --help"
        raise UsageError(f"unexpected argument: {word[:60]}", hint=hint)

    def _is_text(self, word: str) -> bool:
        """Whether ``word`` is text although it begins with a dash: a list in a prompt, or a number."""
        known = word.partition("=")[0] in self._option_string_actions
        return not known and (" " in word or re.fullmatch(r"-\d+|-\d*\.\d+", word) is not None)

    def wants_value(self, word: str) -> bool:
        """Whether the next word is the value of ``word``: for --tail, -n and -fn, not for --tail=5 and -n5."""
        named = [word] if word.startswith("--") else [f"-{letter}" for letter in word[1:]]
        taking = [flag for flag in named if getattr(self._option_string_actions.get(flag), "nargs", 0) is None]
        return bool(taking) and taking[0] == named[-1]

    def _lacks_inventory(self, rest: Sequence[str]) -> bool:
        """Whether the command takes INVENTORY and ``rest`` does not begin with it."""
        takes = self._get_positional_actions()
        if not takes or takes[0].metavar != "INVENTORY":
            return False
        if not rest or len(takes) == 1 or self.get_default("instead"):
            return not rest
        from sparkcluster.cli.common import is_inventory

        return rest[0] in (takes[1].choices or ()) or not is_inventory(rest[0])

    def format_help(self) -> str:
        """The text written beforehand by ``scripts/make-docs``."""
        return help_of(self.prog.removeprefix("sparkcluster ")) or super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise the error that argparse would print.

        Raises:
            UsageError: always.
        """
        from sparkcluster.cli.verbs import ALIASES

        text = re.sub(r"^argument (\S+): ", r"\1: ", " ".join(message.split()))
        text = re.sub("the following arguments are required: (.*)", r"\1 is missing", text)
        hint: str | None = f"{self.prog} --help"
        if choice := re.fullmatch(r"(\S+: invalid choice: '?(.*?)'?) \(choose from (.*)\)", text):
            choices = [each.strip(" '") for each in choice[3].split(",")]
            hint = did_you_mean(ALIASES.get(choice[2], choice[2]), choices, f"one of {', '.join(choices)}")
            text = f"unexpected argument: {choice[2]}" if text.startswith("{") else choice[1]
        raise UsageError(text[:300], hint=hint)


def parser_of(name: str) -> tuple[Parser, Any]:
    """The parser of the command ``name``, and its module."""
    command = import_module(module(name))
    parser = Parser(prog=f"sparkcluster {name}", description=COMMANDS[name])
    command.add_arguments(parser)
    return parser, command
