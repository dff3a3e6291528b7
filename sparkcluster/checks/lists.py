"""Lists of names and of observations in one line of text."""

from __future__ import annotations

from collections.abc import Iterable


def listed(names: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *others, last = list(names)
    return f"{', '.join(others)} and {last}" if others else last


def abridged(observations: Iterable[str], limit: int) -> str:
    """The first ``limit`` of them, and how many more there are."""
    every = list(observations)
    more = [f"and {len(every) - limit} more"] if len(every) > limit else []
    return "; ".join([*every[:limit], *more])
