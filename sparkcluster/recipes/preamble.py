"""Shell text with what was set before it, in which every line keeps its number."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence


def text(
    body: str,
    line: int,
    *,
    variables: Mapping[str, str] | None = None,
    exported: Iterable[str] = (),
    arrays: Mapping[str, Sequence[str]] | None = None,
    commands: Iterable[Sequence[str]] = (),
) -> str:
    """``body``, which is at ``line`` of its file, after assignments of ``variables`` and ``arrays`` and ``commands``.

    Marks of unknown values stay in the values, so that what is unknown is known to be so.
    """
    names = set(exported)
    parts = [
        f"{'export ' if name in names else ''}{name}={shlex.quote(value)}" for name, value in (variables or {}).items()
    ]
    parts += [f"{name}=({shlex.join(words)})" for name, words in (arrays or {}).items()]
    parts += [shlex.join(words) for words in commands]
    before = "; ".join(parts)
    if not before:
        return "\n" * (line - 1) + body
    return before + "\n" * max(line - 1 - before.count("\n"), 1) + body
