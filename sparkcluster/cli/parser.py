"""argparse with errors that are raised, not printed, and that hint at what to type."""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
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
        flags, rest = self.split(words)
        # first: a word that is the value of an unknown flag is no argument of the command
        self._refuse_unknown(self._named(flags))
        lacking = self._lacks_inventory(rest)
        if lacking:
            rest.insert(0, "")
        # argparse gives an optional argument nothing if a flag comes before its word, as in logs INVENTORY -f NODE.
        parsed, unknown = self.parse_known_args([*flags, *(["--"] if rest else []), *rest])
        self._refuse_unknown(word for word in unknown if word.startswith("-"))
        if unknown:
            word = unknown[0][:60]
            playbook = word.endswith((".yaml", ".yml")) and "--playbook" in self._option_string_actions
            hint = f"did you mean --playbook {shlex.quote(word)}?" if playbook else f"{self.prog} --help"
            raise UsageError(f"unexpected argument: {word}", hint=hint)
        if lacking:
            self._fill_in_inventory(parsed, rest)
        return parsed

    def _fill_in_inventory(self, parsed: argparse.Namespace, rest: Sequence[str]) -> None:
        from sparkcluster.cli.common import fill_in_inventory, is_inventory

        try:
            fill_in_inventory(parsed)
        except UsageError:
            later = next((word for word in rest[1:] if is_inventory(word)), None)
            if later is None:
                raise
            raise UsageError("INVENTORY comes first", hint=f"{self.prog} {shlex.quote(later)} …") from None

    def _named(self, flags: Sequence[str]) -> Iterator[str]:
        """The long flags in ``flags``, which have their values after them as ``split`` returns them."""
        queue = iter(flags if self._subparsers is None else ())
        for word in queue:
            if word.startswith("--"):
                yield word
            if self._wants_value(word):
                next(queue, None)

    def _refuse_unknown(self, words: Iterable[str]) -> None:
        known = set(_flags(self))
        for flag in (word.partition("=")[0] for word in words):
            if flag not in known:
                hint = did_you_mean(flag, sorted(known), f"{self.prog} --help")
                raise UsageError(f"unknown flag of {self.prog}: {flag[:60]}", hint=hint)

    def split(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """The flags in ``words`` with their values, and the other words; all are flags of a command with commands."""
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
            else:
                flags.append(word)
                if self._wants_value(word):
                    flags += itertools.islice(queue, 1)
        return flags, rest

    def knows(self, flags: Sequence[str]) -> bool:
        """Whether all of ``flags``, as ``split`` returns them, are flags of this command."""
        names = [word.partition("=")[0] for word in flags if word.startswith("-")]
        return all(name in self._option_string_actions for name in names)

    def _is_text(self, word: str) -> bool:
        """Whether ``word`` is no flag though it begins with a dash: a list in a prompt, a number."""
        known = word.partition("=")[0] in self._option_string_actions
        return not known and (" " in word or re.fullmatch(r"-\d+|-\d*\.\d+", word) is not None)

    def _wants_value(self, word: str) -> bool:
        """Whether the word after ``word`` is its value: after --tail, -n and -fn, not after --tail=5 and -n5."""
        named = [word] if word.startswith("--") else [f"-{letter}" for letter in word[1:]]
        taking = [flag for flag in named if getattr(self._option_string_actions.get(flag), "nargs", 0) is None]
        return bool(taking) and taking[0] == named[-1]

    def _lacks_inventory(self, rest: Sequence[str]) -> bool:
        """Whether the command takes INVENTORY, and ``rest`` does not begin with it."""
        from sparkcluster.cli.common import is_inventory

        takes = [action for action in self._actions if not action.option_strings]
        if not takes or takes[0].metavar != "INVENTORY":
            return False
        if not rest or len(takes) == 1:
            return not rest
        return rest[0] in (takes[1].choices or ()) or not is_inventory(rest[0])

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
            hint = _instead(choice[2], choices) or did_you_mean(choice[2], choices, f"one of {', '.join(choices)}")
        text = re.sub(r"^argument (\S+): ", r"\1: ", text)
        raise UsageError(text[:300], hint=hint)


def _instead(word: str, choices: Sequence[str]) -> str | None:
    """A hint with the one of ``choices`` that does what ``word`` does in other programs: ``up`` for ``start``."""
    from sparkcluster.cli.verbs import VERBS

    name = VERBS.get(word.lower(), "").partition(" ")[0]
    return f"did you mean {name}?" if name in choices else None


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Every flag of a parser and of its subcommands."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for inner in action.choices.values():
                yield from _flags(inner)
