"""Records a model, so that ``sparkcluster fit`` works without the hub; scripts/record-model runs this."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkcluster.errors import SparkclusterError
from sparkcluster.fit import shipped
from sparkcluster.fit.config import parse
from sparkcluster.fit.headers import from_hub, from_path
from sparkcluster.fit.safetensors import Tensor
from sparkcluster.fit.source import Source
from sparkcluster.node.shared import HUB_ADDRESS

WIDTH = 110

_NUMBERS = re.compile(r"(?<=\.)\d+(?=\.)")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def main(arguments: Sequence[str], directory: Path = shipped.DIRECTORY) -> int:
    """Record the model that ``arguments`` name; returns the exit code."""
    if len(arguments) not in {1, 2}:
        print("usage: scripts/record-model REPOSITORY [REVISION]", file=sys.stderr)
        return 2
    name, revision = arguments[0], (*arguments[1:], "main")[0]
    local = Path(name).expanduser()
    try:
        model = from_path(local) if local.is_dir() else from_hub(name, revision)
        parse(model.config, name)
    except SparkclusterError as error:
        print(f"error: {error.message}", *([f"hint: {error.hint}"] if error.hint else []), sep="\n", file=sys.stderr)
        return error.exit_code
    found = name if local.is_dir() else f"{HUB_ADDRESS}/{name}/tree/{model.revision or revision}"
    document = document_of(model, found)
    document["repository"] = name
    path = directory / shipped.file_name(name)
    path.write_text(written(document) + "\n", encoding="utf-8")
    sizes = f"{len(document['tensors'])} kinds of tensors" if "tensors" in document else "without tensors"
    print(f"wrote {path}: {sizes}")
    return 0


def written(value: Any, depth: int = 0) -> str:
    """``value`` as JSON, with lists of scalars, and short lists and objects, on one line."""
    line = json.dumps(value, ensure_ascii=False)
    flat = isinstance(value, list) and not any(isinstance(each, (dict, list)) for each in value)
    if not isinstance(value, (dict, list)) or not value or flat or len(line) + depth <= WIDTH:
        return line
    inner = " " * (depth + 1)
    if isinstance(value, dict):
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {written(each, depth + 1)}" for key, each in value.items()]
        return "{\n" + ",\n".join(inner + part for part in parts) + "\n" + " " * depth + "}"
    return "[\n" + ",\n".join(inner + written(each, depth + 1) for each in value) + "\n" + " " * depth + "]"


def document_of(model: Source, found: str) -> dict[str, Any]:
    """The record of ``model``, which was read from the address ``found``."""
    revision = {} if model.revision is None else {"revision": model.revision}
    made = {"repository": model.name, "source": [found], **revision, "config": model.config}
    if model.tensors is not None:
        depth = _layers(model.config)
        made["tensors"] = [
            [each.name, each.dtype, list(each.shape), each.size_bytes] for each in merged(model.tensors, depth)
        ]
    return made


def merged(tensors: Iterable[Tensor], layers: int) -> list[Tensor]:
    """Merges tensors that differ only in layer or expert; a merged tensor has their total size.

    Tensors of layers ``layers`` and above, which only speculative decoding loads, are merged separately.
    """
    groups: dict[tuple[object, ...], Tensor] = {}
    for tensor in tensors:
        layer = _LAYER.search(tensor.name)
        drafts = layer is not None and int(layer[1]) >= layers
        key = (_NUMBERS.sub("*", tensor.name), tensor.dtype, tensor.shape, drafts)
        first = groups.setdefault(key, dataclasses.replace(tensor, size_bytes=0))
        groups[key] = dataclasses.replace(first, size_bytes=first.size_bytes + tensor.size_bytes)
    return list(groups.values())


def _layers(config: Any) -> int:
    """The number of layers in a config.json; a large number if it has none."""
    for part in (config, *(config.get(key) for key in ("text_config", "llm_config", "language_config"))):
        if isinstance(part, Mapping) and type(part.get("num_hidden_layers")) is int:
            return int(part["num_hidden_layers"])
    return 1 << 20


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
