"""Commands of other programs, and what to type instead; imported for an unknown command alone.

``verbs.txt`` has them, each line after the command of ours: of docker, kubectl, ray, ollama, engines, systemctl, kamal.
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
    """What to type instead of ``words``, whose command does not exist: ours, and what follows it; None if unknown."""
    word = words[0].lower()
    if word.endswith((".yaml", ".yml")):
        return f"the command comes first: {shell('sparkcluster status', words[0])}"
    near = word if word in ALIASES else closest(word, [*ALIASES, *COMMANDS])
    return shell("sparkcluster", ALIASES.get(near, near), *words[1:]) if near else None
