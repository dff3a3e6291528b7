"""Which of several nodes is unlike the others: the majority is right, and of two the newer one."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping

from sparkcluster.checks.wording import listed


@dataclasses.dataclass(frozen=True, slots=True)
class Odd:
    """One node that is unlike the others.

    Attributes:
        wanted: what the majority has; where there is none, the newest of what there is.
        others: nodes that have it.
        even: whether there is no majority, so that the newer one counted.
    """

    node: str
    value: str
    wanted: str
    others: tuple[str, ...]
    even: bool

    @property
    def newer(self) -> bool:
        """Whether it is ahead of the others, so that they are to be updated rather than it."""
        return order(self.value) > order(self.wanted)

    @property
    def seen(self) -> str:
        """Both values, and by which rule this node was chosen."""
        rule = "; none is in the majority, so the older one is named" if self.even else ""
        return f"{self.value} on {self.node}, {self.wanted} on {listed(self.others)}{rule}"

    def behind(self, *commands: str) -> tuple[str, ...]:
        """``commands``, where they are typed: on this node, or on the others where those are behind."""
        if not self.newer:
            return commands
        return tuple(f"on {listed(self.others)}: {command}" for command in commands)


def odd_ones(values: Mapping[str, str | None]) -> list[Odd]:
    """Nodes whose value is unlike that of the majority; those whose value is None are not judged.

    Args:
        values: by node, such as a version.
    """
    known = {name: value for name, value in values.items() if value is not None}
    counts = Counter(known.values())
    if len(counts) < 2:
        return []
    most = max(counts.values())
    leading = [value for value, count in counts.items() if count == most]
    wanted = max(leading, key=order)
    others = tuple(name for name, value in known.items() if value == wanted)
    return [Odd(name, value, wanted, others, even=len(leading) > 1) for name, value in known.items() if value != wanted]


def order(version: str) -> tuple[tuple[int, ...], str]:
    """What versions are sorted by: their numbers, then their letters; a VBIOS counts in hexadecimal."""
    if re.fullmatch(r"[0-9A-Fa-f]{2}(\.[0-9A-Fa-f]{2}){2,}", version):
        return tuple(int(part, 16) for part in version.split(".")), version
    return tuple(int(number) for number in re.findall(r"\d+", version)), version
