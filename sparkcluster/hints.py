"""What hints and remedies show in place of INVENTORY."""

from __future__ import annotations

import dataclasses
import re
import shlex

_TAKES_PLAYBOOK = {"up", "upgrade", "plan", "preflight", "stage", "doctor", "connect"}


@dataclasses.dataclass(frozen=True, slots=True)
class Typed:
    """What was typed: the inventory, quoted, and the ``flags`` that chose what it does not say."""

    inventory: str = "INVENTORY"
    flags: tuple[str, ...] = ()

    def __call__(self, text: str) -> str:
        """``text`` with the inventory in place of INVENTORY, and the flags behind it where the command takes them.

        A command that names a playbook itself gets none.
        """
        return re.sub(r"(sparkcluster (\w+) )?INVENTORY( --playbook\b| --resume\b)?", self._filled, text)

    def _filled(self, found: re.Match[str]) -> str:
        before, command, own = found.groups(default="")
        words = shlex.join(self.flags) if command in _TAKES_PLAYBOOK and not own else ""
        if command == "upgrade":
            words = words.replace("--set image=", "--image ")
        return " ".join(filter(None, [before + self.inventory, words])) + own
