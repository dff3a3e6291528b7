"""Merge playbooks: bases named by ``extends``, and overlays named after a ``+``.

The upper document wins. Sections (``args``, ``env``, ``verify``, ...) are merged by key, the lists in ``ADDED`` are
concatenated, everything else is replaced; ``null`` removes a key. Every value keeps its place, so that problems are
reported in the right file.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any

from sparkcluster.spec.document import Document, KeyPath

ADDED = ("mounts", "setup", "secrets", "allow")
"""Lists that are concatenated."""

OWN = ("name", "extends", "use")
"""Keys that are not inherited."""

MAX_DEPTH = 8
"""Levels of ``extends``."""

OF_A_REPOSITORY = frozenset({"id", "path", "revision", "files", "exclude"})
"""Keys of ``model`` that are not inherited if ``id`` or ``path`` is replaced."""


def put_on(base: Document, top: Document) -> Document:
    """``top`` merged over ``base`` in a new document with the file name of ``top``."""
    out = Document(top.file, {}, problems=[*base.problems, *top.problems])
    for key in [key for key in base.data if key not in OWN and key not in top.data]:
        copy(out, (key,), base, (key,))
    for key, value in top.data.items():
        below = base.data.get(key) if key not in OWN else None
        if isinstance(value, dict) and isinstance(below, dict):
            _section(out, key, base, top)
        elif key in ADDED and isinstance(value, list) and isinstance(below, list):
            _list(out, key, base, top)
        elif value is not None or below is None:
            copy(out, (key,), top, (key,))
    return out


def _section(out: Document, key: str, base: Document, top: Document) -> None:
    copy(out, (key,), top, (key,))
    above, below = top.data[key], base.data[key]
    # id and path are alternatives: a new one replaces either.
    replaced = OF_A_REPOSITORY if key == "model" and {"id", "path"} & set(above) else frozenset()
    out.data[key] = {}
    for name in below:
        if name not in above and name not in replaced:
            copy(out, (key, name), base, (key, name))
    out.data[key] |= {name: value for name, value in above.items() if value is not None or name not in below}


def _list(out: Document, key: str, base: Document, top: Document) -> None:
    copy(out, (key,), top, (key,))
    out.data[key] = []
    for document in (base, top):
        for index, value in enumerate(document.data[key]):
            if value not in out.data[key]:
                copy(out, (key, len(out.data[key])), document, (key, index))


def copy(out: Document, path: KeyPath, source: Document, origin: KeyPath) -> None:
    """Copy the value at ``origin`` of ``source`` to ``path`` of ``out``, with all places."""
    holder: Any = functools.reduce(operator.getitem, path[:-1], out.data)
    value: Any = functools.reduce(operator.getitem, origin, source.data)
    if isinstance(holder, list):
        holder.append(value)
    else:
        holder[path[-1]] = value
    forget(out, path)
    for places, origins in ((out.values, source.values), (out.keys, source.keys)):
        for at, place in origins.items():
            if at[: len(origin)] == origin:
                placed = place if place.file else dataclasses.replace(place, file=source.file)
                places[(*path, *at[len(origin) :])] = placed


def forget(document: Document, path: KeyPath) -> None:
    """Remove the places at ``path`` and below it."""
    for places in (document.values, document.keys):
        for inside in [each for each in places if each[: len(path)] == path]:
            del places[inside]


def places(document: Document) -> dict[KeyPath, tuple[str, int | None]]:
    """File and line of every key and list entry of ``document``, or the flag that sets it and None."""
    return {
        path: (place.file or document.file, place.line or None)
        for path, place in {**document.values, **document.keys}.items()
        if path
    }
