"""argparse with errors that are raised, not printed, and that hint at what to type."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from sparkcluster.errors import UsageError
from sparkcluster.suggest import did_you_mean


class Parser(argparse.ArgumentParser):
    """Parser of one command."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        super().__init__(*args, **options)
        self.set_defaults(json=False, json_lines=False)

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """The command line in ``words``.

        Raises:
            UsageError: an unknown flag, a missing or extra argument, an invalid value.
        """
        parsed, unknown = self.parse_known_args(list(words))
        for word in unknown:
            if word.startswith("-"):
                flag = word.partition("=")[0]
                hint = did_you_mean(flag, sorted(set(_flags(self))), f"{self.prog} --help")
                raise UsageError(f"unknown flag of {self.prog}: {flag[:60]}", hint=hint)
        if unknown:
            raise UsageError(f"unexpected argument: {unknown[0][:60]}", hint=f"{self.prog} --help")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print.

        Raises:
            UsageError: always.
        """
        text = " ".join(message.split())
        missing = re.fullmatch(r"the following arguments are required: (.*)", text)
        if missing:
            text = f"{missing[1]} is missing" if "," not in missing[1] else f"missing: {missing[1]}"
        choice = re.fullmatch(r"argument (\S+): invalid choice: '?(.*?)'? \(choose from (.*)\)", text)
        hint: str | None = f"{self.prog} --help"
        if choice:
            choices = [word.strip(" '") for word in choice[3].split(",")]
            argument = choice[1] if choice[1].startswith("-") else choice[1].upper()
            text = f"invalid {argument}: {choice[2][:60]}"
            hint = did_you_mean(choice[2], choices, f"one of {', '.join(choices)}")
        text = re.sub(r"^argument (\S+): ", r"\1: ", text)
        raise UsageError(text[:300], hint=hint)


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Every flag of a parser and of its subcommands."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for inner in action.choices.values():
                yield from _flags(inner)
