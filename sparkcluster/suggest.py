"""The name that a user probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: object, names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The most similar one of ``names``, at least ``cutoff`` (1: equal). Case, dashes and underscores do not count."""
    folded = {name.lower().replace("_", "-"): name for name in names}
    near = difflib.get_close_matches(str(word)[:80].lower().replace("_", "-"), sorted(folded), n=1, cutoff=cutoff)
    return folded[near[0]] if near else None


def did_you_mean(word: object, names: Iterable[str], otherwise: str | None = None) -> str | None:
    """A hint with the name that ``word`` resembles, or else ``otherwise``."""
    near = closest(word, names)
    return f"did you mean {near}?" if near else otherwise
