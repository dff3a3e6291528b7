"""Hints and reasons as shown: INVENTORY replaced by what was typed, and the node named."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from sparkcluster.printable import word

_TAKES_PLAYBOOK = (
    r"(sparkcluster (?:up|upgrade|plan|preflight|stage|doctor|connect) INVENTORY)(?! --playbook| --resume)"
)


_TAKES_MODEL = r"(sparkcluster (?!setup|key|models|discover|fit|lint|load|unload)\S+ INVENTORY)"


class CommandLine(NamedTuple):
    """What was typed: the inventory, the ``flags`` that override it, and the ``model`` if it has several."""

    inventory: str = "INVENTORY"
    flags: tuple[str, ...] = ()
    model: str = ""

    def __call__(self, text: str) -> str:
        """``text`` with the inventory in place of INVENTORY, and with the flags where the command takes them."""
        text = re.sub(_TAKES_PLAYBOOK, lambda found: " ".join([found[1], *map(word, self.flags)]), text)
        text = text.replace("upgrade INVENTORY --set image=", "upgrade INVENTORY --image ")
        if self.model:
            text = text.replace("load INVENTORY NAME", f"load INVENTORY {word(self.model)}")
            text = re.sub(_TAKES_MODEL, lambda found: f"{found[1]} --model {word(self.model)}", text)
        return text.replace("INVENTORY", word(self.inventory))

    def throughout(self, value: Any) -> Any:
        """A JSON ``value`` with INVENTORY replaced in every string."""
        if isinstance(value, str):
            return self(value) if "INVENTORY" in value else value
        if isinstance(value, list):
            return [self.throughout(each) for each in value]
        return {key: self.throughout(each) for key, each in value.items()} if isinstance(value, dict) else value


command_line = CommandLine()
"""What was typed for this process; set by ``cli.main``."""


def with_node(node: str | None, text: str) -> str:
    """``text`` after the name of its node, unless it has this name as a word."""
    return text if not node or re.search(rf"(?<![\w.-]){re.escape(node)}(?![\w-]|\.\w)", text) else f"{node}: {text}"
