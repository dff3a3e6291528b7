"""Completion at Tab: argcomplete calls it through the shell functions that ``completion`` prints.

It reads only regular files of at most 64 KiB, contacts no node and writes no message. Names may come from files of
other users, so names that need quoting are not offered. Values are completed by the argument's metavar, in the table
below.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from argcomplete.completers import SuppressCompleter
from argcomplete.finders import CompletionFinder
from argcomplete.lexers import split_line

from sparkcluster.cli.commands import COMMANDS
from sparkcluster.cli.common import default_inventory, is_inventory
from sparkcluster.cli.parser import Parser, parser_of
from sparkcluster.suggest import playbook_name

MAX_BYTES = 64 << 10
_PLAIN = re.compile(r"[A-Za-z0-9._:+@%,/-]*")


def answer() -> None:
    """Write the completions of the line in the environment, and exit; on an error write nothing."""
    with contextlib.suppress(Exception):
        *_, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
        # zsh passes the whole line: A=1 sparkcluster, cd . && sparkcluster
        at = max((at for at, word in enumerate(words) if word.endswith("sparkcluster")), default=0)
        if words[at + 1 : at + 2] and words[at + 1] in COMMANDS:
            at += 1
            parser, _ = parser_of(words[at])
            _attach(words[at], parser)
        else:
            parser = Parser(prog="sparkcluster")
            vars(parser.add_argument("command"))["completer"] = lambda **_: COMMANDS
        os.environ["_ARGCOMPLETE"] = str(at + 1)
        _Finder()(parser, always_complete_options=False, validator=_offered, default_completer=SuppressCompleter())
    sys.exit(0)


class _Finder(CompletionFinder):
    def _get_completions(self, words: list[str], *rest: Any) -> Any:
        """As argcomplete, with flags first: argparse ignores NODE in ``logs INVENTORY -f NODE``."""
        parser: Any = self._parser
        flags, others = parser.split(words[1:])
        waits = bool(flags) and parser.wants_value(flags[-1]) and words[-1] == flags[-1]
        ordered = [*others, *flags] if waits else [*flags, *others]
        return super()._get_completions([words[0], *ordered], *rest)  # type: ignore[no-untyped-call]


def _offered(completion: str, prefix: str) -> bool:
    """Whether ``completion`` continues what was typed and needs no quoting; zsh quotes a ``~``.

    A name that begins with a dash would be read as a flag.
    """
    quoted = prefix.startswith("~") and os.environ.get("_ARGCOMPLETE_SHELL") == "zsh"
    flag = completion.startswith("-") and not prefix
    return not (quoted or flag) and completion.startswith(prefix) and bool(_PLAIN.fullmatch(completion, len(prefix)))


def _attach(name: str, parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - likewise
            for inner in action.choices.values():
                _attach(name, inner)
        elif action.choices is None:
            metavar = str(action.metavar)
            vars(action)["completer"] = COMPLETERS.get(f"{name} {metavar}") or COMPLETERS.get(metavar)


def _nodes(*, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Nodes of the inventory."""
    found = [node.get("name") or node.get("host") for node in _inventory(parsed_args, "nodes")]
    return [name for name in found if isinstance(name, str)]


def _models(*, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Models of the inventory."""
    entries = [each for each in _inventory(parsed_args, "models") if isinstance(each, dict)]
    found = [each.get("name") or playbook_name(str(each.get("playbook"))) for each in entries]
    return [name for name in found if isinstance(name, str)]


def _groups(*, prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Groups of the inventory, also after a comma."""
    base, comma, _group = prefix.rpartition(",")
    found = [group.get("name") for group in _inventory(parsed_args, "groups")]
    return [f"{base}{comma}{name}" for name in found if isinstance(name, str)]


def _inventory(args: argparse.Namespace, key: str) -> Any:
    """A key of the inventory on the line, or of the default one, as plain YAML; empty if it cannot be read."""
    import yaml

    with contextlib.suppress(Exception):
        typed = getattr(args, "inventory", None)
        path = typed.expanduser() if typed and is_inventory(str(typed)) else default_inventory()[0]
        return yaml.load(_small(str(path)), yaml.BaseLoader)[key]  # noqa: S506 - it makes text, lists and dicts only
    return []


def _small(path: str) -> str:
    if not os.path.isfile(path) or os.path.getsize(path) > MAX_BYTES:  # noqa: PTH113, PTH202 - as in common
        return ""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - likewise
        return file.read(MAX_BYTES)


def _words(kind: str) -> Callable[..., dict[str, str]]:
    """A completer for names that sparkcluster defines; ``scripts/make-docs`` writes them to a file, which is faster."""

    def completer(*, prefix: str, **_: Any) -> dict[str, str]:
        rows = (row.split("\t") for row in _small(__file__.replace("complete.py", "words.txt")).splitlines())
        return {name.lower() if prefix.islower() else name: about for what, name, about in rows if what == kind}

    return completer


def _files(*ends: str) -> Callable[..., dict[str, str]]:
    """A completer for directories and for files with these endings; ``~`` is not expanded."""

    def completer(*, prefix: str, **_: Any) -> dict[str, str]:
        folder = prefix[: prefix.rfind("/") + 1]
        with os.scandir(os.path.expanduser(folder) or ".") as entries:  # noqa: PTH111 - likewise
            names = sorted(f"{each.name}/" if each.is_dir() else each.name for each in entries)
        return {f"{folder}{name}": "" for name in names if name.endswith(("/", *ends))}

    return completer


def _playbooks(*, prefix: str, **_: Any) -> dict[str, str]:
    """The bundled playbooks, and files."""
    return _words("PLAYBOOK")(prefix="") | _YAML(prefix=prefix)


_YAML = _files(".yaml", ".yml")
# By the metavar of an argument, where needed preceded by the command.
COMPLETERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(["INVENTORY", "INV"], _YAML),
    **dict.fromkeys(["P", "PLAYBOOK", "playbooks NAME"], _playbooks),
    **dict.fromkeys(["NODE", "setup NAME"], _nodes),
    **dict.fromkeys(["G", "GROUPS"], _groups),
    **dict.fromkeys(["FILE", "OUT", "PATH", "KEY", "K"], _files("")),
    **{kind: _words(kind) for kind in ("CODE", "STEP", "KIND")},
    "connect NAME": _words("CLIENT"),
    "NAME": _models,
}
