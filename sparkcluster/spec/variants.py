"""``variants`` of a playbook: what is different for groups of some numbers of nodes.

A playbook is a stack of documents: what it extends lowest, overlays on top. For a number of nodes each document is
merged with its own variant first, and then the next one over it, so that a playbook wins over variants of what it
extends.
What comes out has no variants: plan, checks, fit, records and hashes see one playbook.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any

from sparkcluster.errors import Problem
from sparkcluster.report import count
from sparkcluster.spec import compose
from sparkcluster.spec.document import Document, KeyPath
from sparkcluster.spec.playbook import VARIANT, Playbook

KEY = "variants"
FIXED = ("name", "extends", "overlays", "nodes", KEY)
"""Keys that no variant has."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of nodes, as a key says them: ``2``, ``2-4`` or ``2+``; ``high`` is None without an end."""

    key: str
    low: int
    high: int | None

    def __contains__(self, nodes: int) -> bool:
        return self.low <= nodes and (self.high is None or nodes <= self.high)


def sizes(layers: Sequence[Document]) -> list[Sizes]:
    """What the keys of all variants say, without those that are malformed."""
    found = (_sizes(key) for layer in layers for key in _written(layer))
    return [each for each in dict.fromkeys(found) if each is not None]


def merged(layers: Sequence[Document], nodes: int | None) -> Document:
    """The playbook for groups of ``nodes``, without variants; for None, with none of them."""
    return functools.reduce(compose.put_on, [_of_size(layer, nodes) for layer in layers])


def problems(layers: Sequence[Document]) -> list[Problem]:
    """What is wrong with the keys of variants and what they name; not with the playbooks that they make."""
    return [problem for layer in layers if KEY in layer.data for problem in _problems(layer)]


def misfits(each: Sizes, playbook: Playbook, document: Document) -> list[Problem]:
    """Why no group that ``each`` means could serve ``playbook``, which was merged for it."""
    bounds = playbook.nodes
    if each.low > (bounds.max or each.low) or (each.high is not None and each.high < bounds.min):
        what = f"at least {bounds.min}" if each.low < bounds.min else f"at most {bounds.max}"
        message = f"there is a variant for {each.key}, but nodes allows {what}"
        return [document.problem(("nodes",), message, "change nodes, or remove the variant")]
    ranks = playbook.ranks
    if ranks is not None and ranks not in each:
        message = f"makes {count(ranks, 'rank')}, but the variant is for groups of {each.key}"
        return [document.problem(("tensor_parallel",), message, "write tensor_parallel: auto in the variant")]
    return []


def differ(chosen: dict[int, Document], layers: Sequence[Document]) -> list[Problem]:
    """The problem of groups that would serve different playbooks; ``chosen`` is by the number of their nodes."""
    data = [document.data for document in chosen.values()]
    if all(each == data[0] for each in data):
        return []
    layer = next(each for each in reversed(layers) if KEY in each.data)
    groups = " and ".join(f"of {nodes}" for nodes in sorted(chosen))
    hint = "give all groups as many nodes, or write an inventory for each"
    return [layer.problem((KEY,), f"groups {groups} nodes would serve different variants", hint, key=True)]


def _written(layer: Document) -> dict[str, Any]:
    found = layer.data.get(KEY)
    return found if isinstance(found, dict) else {}


def _sizes(key: str) -> Sizes | None:
    found = re.fullmatch(VARIANT, key)
    if found is None:
        return None
    low = int(found[1])
    high = None if found[2] == "+" else int(found[3] or low)
    return Sizes(key, low, high) if high is None or high >= low else None


def _of_size(layer: Document, nodes: int | None) -> Document:
    if KEY not in layer.data:
        return layer
    plain = dataclasses.replace(layer, data={key: value for key, value in layer.data.items() if key != KEY})
    for key, value in _written(layer).items():
        found = _sizes(key)
        if nodes is not None and found is not None and nodes in found and isinstance(value, dict):
            return compose.put_on(plain, _document(layer, key))
    return plain


def _document(layer: Document, key: str) -> Document:
    """The variant ``key`` as a document on top of ``layer``, whose name and base it has."""
    own = {name: layer.data[name] for name in compose.OWN if name in layer.data}
    out = Document(
        layer.file, {**own, **{name: value for name, value in layer.data[KEY][key].items() if name not in FIXED}}
    )
    size = len((KEY, key))
    for places, found in ((out.values, layer.values), (out.keys, layer.keys)):
        for path, place in found.items():
            if path[:size] == (KEY, key):
                places[path[size:]] = place
            elif path[:1] and path[0] in own:
                places[path] = place
    for path, text in layer.written.items():
        if path[:size] == (KEY, key):
            out.written[path[size:]] = text
    return out


def _problems(layer: Document) -> list[Problem]:
    written = layer.data[KEY]
    if not isinstance(written, dict):
        return [] if written is None else [layer.problem((KEY,), "must be a section")]
    out: list[Problem] = []
    before: list[Sizes] = []
    for key, value in written.items():
        path: KeyPath = (KEY, key)
        found = _sizes(key)
        if found is None:
            hint = "write a number, as 2, a range, as 2-4, or 2+ for 2 and more"
            out.append(layer.problem(path, "must be a number of nodes", hint, key=True))
            continue
        for other in before:
            shared = max(found.low, other.low)
            if shared in found and shared in other:
                message = f"groups of {count(shared, 'node')} have the variant {other.key} already"
                out.append(layer.problem(path, message, "keep one of them for each number", key=True))
                break
        before.append(found)
        if not isinstance(value, dict):
            out += [] if value is None else [layer.problem(path, "must be a section")]
            continue
        out += [
            layer.problem((*path, name), "is the same for all numbers of nodes", "write it above variants", key=True)
            for name in FIXED
            if name in value
        ]
    return out
