"""``variants`` of a playbook: overrides for certain group sizes.

A playbook is a stack of documents: bases below, overlays on top. Each document is first merged with its own variant,
then with the next document over it, so that a playbook wins over the variants of its bases. The result has no variants:
plan, checks, fit, records and hashes see a plain playbook.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from sparkcluster.errors import Problem
from sparkcluster.spec import compose
from sparkcluster.spec.base import Section
from sparkcluster.spec.document import Document, KeyPath
from sparkcluster.spec.playbook import VARIANT, VariantKey

KEY = "variants"
FIXED = ("name", "extends", "overlays", "nodes", KEY)
"""Keys that a variant must not have."""


MOST = 10_000
"""Greater than any number of nodes in a key."""


class _Variants(Section):
    """The key in one document."""

    variants: dict[VariantKey, dict[str, Any] | None]


def sizes(layers: Sequence[Document]) -> dict[str, range]:
    """Group sizes of all variants by key, without malformed keys."""
    return {key: found for layer in layers for key in _written(layer) if (found := _numbers(key))}


def merged(layers: Sequence[Document], nodes: int | None) -> Document:
    """The merged playbook for groups of ``nodes``; for None, without any variant."""
    return functools.reduce(compose.put_on, [_of_size(layer, nodes) for layer in layers])


def problems(layers: Sequence[Document]) -> list[Problem]:
    """Problems of the keys of variants; merged playbooks are checked elsewhere."""
    return [problem for layer in layers if layer.data.get(KEY) is not None for problem in _problems(layer)]


def differ(chosen: dict[int, Document], layers: Sequence[Document]) -> list[Problem]:
    """A problem if groups would serve different playbooks; ``chosen`` maps group sizes to documents."""
    data = [document.data for document in chosen.values()]
    if all(each == data[0] for each in data):
        return []
    layer = next(each for each in reversed(layers) if KEY in each.data)
    groups = " and ".join(f"of {nodes}" for nodes in sorted(chosen))
    hint = "use groups of equal size, or write an inventory for each"
    return [layer.problem((KEY,), f"groups {groups} nodes would serve different variants", hint, key=True)]


def _written(layer: Document) -> dict[str, Any]:
    found = layer.data.get(KEY)
    return found if isinstance(found, dict) else {}


def _numbers(key: str) -> range:
    """The group sizes of a key ``2``, ``2-4`` or ``2+``; empty if malformed."""
    found = re.fullmatch(VARIANT, key)
    if found is None:
        return range(0)
    low = int(found[1])
    return range(low, MOST if found[2] == "+" else int(found[3] or low) + 1)


def _of_size(layer: Document, nodes: int | None) -> Document:
    """``layer`` with its variant for groups of ``nodes`` on top of it, and without variants."""
    if KEY not in layer.data:
        return layer
    plain = dataclasses.replace(layer, data={key: value for key, value in layer.data.items() if key != KEY})
    for key, value in _written(layer).items():
        if nodes is not None and nodes in _numbers(key) and isinstance(value, dict):
            top = Document(layer.file, {})
            for name in compose.OWN:
                if name in layer.data:
                    compose.copy(top, (name,), layer, (name,))
            for name in value:
                if name not in FIXED:
                    compose.copy(top, (name,), layer, (KEY, key, name))
            return compose.put_on(plain, top)
    return plain


def _problems(layer: Document) -> Iterator[Problem]:
    try:
        checked = _Variants.model_validate({KEY: layer.data[KEY]})
    except ValidationError as error:
        from sparkcluster.spec import messages  # noqa: PLC0415 - for wrong input alone

        yield from messages.problems(error, layer, _Variants)
        return
    taken: dict[str, range] = {}
    for key, value in checked.variants.items():
        path: KeyPath = (KEY, key)
        numbers = _numbers(key)
        if not numbers:
            yield layer.problem(path, "is not a range of nodes", "write the lower number first, as in 2-4", key=True)
        for other, before in taken.items():
            if range(max(numbers.start, before.start), min(numbers.stop, before.stop)):
                message = f"overlaps variant {other}"
                yield layer.problem(path, message, "use each number of nodes in one variant only", key=True)
        taken[key] = numbers
        for name in FIXED:
            if name in (value or {}):
                hint = "write it above variants"
                yield layer.problem((*path, name), "cannot differ between numbers of nodes", hint, key=True)
