"""The name that a user probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: object, names: Iterable[str], *, cutoff: float = 0.7) -> str | None:
    """The name in ``names`` with the same letters in another order, else the most similar one.

    Case, dashes and underscores do not count. ``cutoff`` is the least similarity (1: equal); at 0.7 about one letter in
    four may differ. At most two letters may be missing, except at the end.
    """
    folded = {name.lower().replace("_", "-"): name for name in names}
    typed = str(word)[:80].lower().replace("_", "-")
    same_letters = [name for name in sorted(folded) if sorted(name) == sorted(typed)]
    alike = [
        name
        for name in sorted(folded)
        if abs(len(name) - len(typed)) <= 2 or name.startswith(typed) or typed.startswith(name)
    ]
    near = [*same_letters, *difflib.get_close_matches(typed, alike, n=1, cutoff=cutoff)]
    return folded[near[0]] if near else None


def did_you_mean(word: object, names: Iterable[str], otherwise: str | None = None) -> str | None:
    """A hint with the name that ``word`` resembles; ``otherwise`` if it resembles none."""
    near = closest(word, names)
    return f"did you mean {near}?" if near else otherwise


def playbook_name(reference: str) -> str:
    """The default name of a model: the last part of its playbook's name, path or repository."""
    return reference.rpartition("/")[2].partition("+")[0].removesuffix(".yaml").removesuffix(".yml")
