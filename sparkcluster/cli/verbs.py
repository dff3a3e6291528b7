"""Suggests our command for a command of another program; imported only for unknown commands.

``verbs.txt`` lists them after our command, from docker, kubectl, ray, ollama, engines, systemctl and kamal.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparkcluster.cli.commands import COMMANDS
from sparkcluster.printable import shell
from sparkcluster.suggest import closest

_ROWS = [row.split(": ") for row in Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines()]
ALIASES = {word: command for command, words in _ROWS for word in words.split()}


def instead_of(words: Sequence[str]) -> str | None:
    """Our command line instead of ``words``, whose command does not exist; None if there is none."""
    word = words[0].lower()
    if word.endswith((".yaml", ".yml")):
        return f"the command comes first: {shell('sparkcluster status', words[0])}"
    near = word if word in ALIASES else closest(word, [*ALIASES, *COMMANDS])
    command = ALIASES.get(near or "", near)
    kind = ALIASES.get(words[1]) if words[1:] else None  # get nodes: the second word is not an argument of ours
    return shell("sparkcluster", command, *(words[1:] if kind != command else ())) if command else None
