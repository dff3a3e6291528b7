"""Find nodes that differ from the majority or, without one, from the newest; format lists in one line."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from sparkcluster.findings import Remedy

T = TypeVar("T")


def listed(names: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *others, last = list(names)
    return f"{', '.join(others)} and {last}" if others else last


def abridged(observations: Iterable[str], limit: int) -> str:
    """The first ``limit`` observations, and the number of others."""
    every = list(observations)
    more = [f"and {len(every) - limit} more"] if len(every) > limit else []
    return "; ".join([*every[:limit], *more])


def common(values: Iterable[T]) -> T | None:
    """The most frequent value; the first on a tie."""
    return next((value for value, _ in Counter(values).most_common(1)), None)


@dataclasses.dataclass(frozen=True, slots=True)
class Outlier:
    """A node that differs from the others.

    Attributes:
        expected: value of the majority; without a majority, the newest.
        others: nodes with the expected value.
    """

    node: str
    value: str
    expected: str
    others: tuple[str, ...]

    @property
    def newer(self) -> bool:
        """Whether its value is newer, so that the others need the update."""
        return order(self.value) > order(self.expected)

    @property
    def seen(self) -> str:
        """Both values."""
        return f"{self.value} on {self.node}, {self.expected} on {listed(self.others)}"

    def update(self, *commands: Remedy) -> tuple[Remedy, ...]:
        """``commands`` for this node, or for the others if this node is newer."""
        on = listed(self.others) if self.newer else ""
        return tuple(dataclasses.replace(command, on=on) for command in commands)


def outliers(values: Mapping[str, str | None], usable: Callable[[str], bool] = bool) -> list[Outlier]:
    """Nodes whose value (such as a version) differs from the majority's; None is ignored.

    An unusable value is expected only if no node has a ``usable`` one.
    """
    present = {name: value for name, value in values.items() if value is not None}
    if len(set(present.values())) < 2:
        return []
    counts = Counter(filter(usable, present.values())) or Counter(present.values())
    most = max(counts.values())
    leading = [value for value, count in counts.items() if count == most]
    expected = max(leading, key=order)
    others = tuple(name for name, value in present.items() if value == expected)
    return [Outlier(name, value, expected, others) for name, value in present.items() if value != expected]


def order(version: str) -> tuple[tuple[int, ...], str]:
    """Sort key of versions: their numbers, then their text; a VBIOS is hexadecimal."""
    if re.fullmatch(r"[0-9A-Fa-f]{2}(\.[0-9A-Fa-f]{2}){2,}", version):
        return tuple(int(part, 16) for part in version.split(".")), version
    return tuple(int(number) for number in re.findall(r"\d+", version)), version
