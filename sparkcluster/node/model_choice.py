"""Selects the files of a model that an engine reads, by name. Pure.

Used for download, copy, verification and sizes. A choice is a document: ``include`` and ``exclude`` are patterns
(``model.files`` and ``model.exclude`` of the playbook). ``format`` is what the engine loads: ``mistral`` (the
consolidated files), ``any``, or None for safetensors, and other weights only if there are none. The loader in
``model_executor/model_loader/default_loader.py`` does the same, and ignores ``original/``, too
(``LoadConfig.ignore_patterns``).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

Choice = dict[str, Any]

WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")
_PICKLED = (".bin", ".pt")
_OTHER_ENGINES = (".h5", ".msgpack", ".onnx", ".onnx_data", ".ot", ".pth", ".tflite")
_OTHER_FOLDERS = ("coreml", "flax", "metal", "onnx", "openvino", "original")
_CONSOLIDATED = "consolidated"
_NUMBERED = re.compile(r"^(.+)-([0-9]{5})-of-([0-9]{5})(\.(?:safetensors|bin|gguf))$")
_INDEX, _CONSOLIDATED_INDEX, _PICKLED_INDEX = (
    "model.safetensors.index.json",
    "consolidated.safetensors.index.json",
    "pytorch_model.bin.index.json",
)


def chosen(names: Iterable[str], shards: Collection[str], choice: Choice | None) -> list[str]:
    """The files of ``names`` that are served, sorted; ``shards`` are the files in the index. All without a choice.

    If the rules would exclude all weights, all files are chosen.
    """
    every = sorted(names)
    if choice is None:
        return every
    if choice.get("include"):
        return [name for name in every if wanted(name, choice)]
    found = [name for name in every if name.partition("/")[0] not in _OTHER_FOLDERS]
    unread = _unread([name for name in found if "/" not in name], found, set(shards), choice.get("format"))
    found = [name for name in found if name not in unread]
    if not any(name.endswith(WEIGHTS) for name in found) and any(
        name.endswith((*WEIGHTS, *_OTHER_ENGINES)) for name in every
    ):
        found = every
    return [name for name in found if wanted(name, choice)]


def wanted(name: str, choice: Choice | None) -> bool:
    """Whether the patterns of ``choice`` include ``name``."""
    include, exclude = (list((choice or {}).get(key) or ()) for key in ("include", "exclude"))
    return (not include or _matches(name, include)) and not _matches(name, exclude)


def series_of(names: Iterable[str], choice: Choice | None) -> list[str]:
    """All files of each numbered series that one of ``names`` is in, such as ``a-00001-of-00003.safetensors``.

    After an interrupted download, some may exist without an index.
    """
    there = list(names)
    if any("/" not in name and name.endswith(WEIGHTS) for name in there):
        there = [name for name in there if "/" not in name]  # files in folders are not read
    matches = list(filter(None, map(_NUMBERED.match, there)))
    found = {match.group(1, 3, 4) for match in matches}
    from_zero = {match.group(1, 3, 4) for match in matches if not int(match.group(2))}
    every = (
        "%s-%05d-of-%s%s" % (stem, number + (series not in from_zero), count, suffix)
        for series in found
        for stem, count, suffix in [series]
        for number in range(int(count))
    )
    return sorted(name for name in every if wanted(name, choice))


def index_of(names: Collection[str], choice: Choice | None) -> str | None:
    """The index among ``names`` for the weights that are read; None if they have none."""
    top = [name for name in names if name.endswith(".safetensors") and "/" not in name]
    order = [_INDEX, "" if any(not name.startswith(_CONSOLIDATED) for name in top) else _CONSOLIDATED_INDEX]
    if (choice or {}).get("format") == "mistral":
        order.insert(0, _CONSOLIDATED_INDEX)
    if not top:
        order.append(_PICKLED_INDEX)
    return next((index for index in order if index in names), None)


def _unread(top: Sequence[str], every: Sequence[str], shards: set[str], loads: str | None) -> set[str]:
    """Top-level weight files in a format that is not loaded."""
    unread = {name for name in top if name.endswith(_OTHER_ENGINES)}
    if loads == "any":
        return unread
    tensors = {name for name in top if name.endswith(".safetensors")}
    consolidated = {name for name in tensors if name.startswith(_CONSOLIDATED)}
    if loads == "mistral" and consolidated:
        unread |= tensors - consolidated
    elif shards.intersection(every):
        unread |= tensors - shards
    elif tensors != consolidated:
        unread |= consolidated
    if tensors or any(name.endswith(".safetensors") for name in shards.intersection(every)):
        unread.update(name for name in top if name.endswith((*_PICKLED, ".gguf")))
    elif any(name.endswith(_PICKLED) for name in top):
        unread.update(name for name in top if name.endswith(".gguf"))
    return unread


def _matches(name: str, patterns: Sequence[str]) -> bool:
    # as in huggingface_hub: a folder matches everything in it
    return any(fnmatch.fnmatchcase(name, each + "*" if each.endswith("/") else each) for each in patterns)
