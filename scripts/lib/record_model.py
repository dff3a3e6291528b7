"""Writes what ``sparkcluster fit`` knows of a model without the hub: see scripts/record-model."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkcluster.errors import SparkclusterError
from sparkcluster.fit import shipped
from sparkcluster.fit.config import parse
from sparkcluster.node.shared import HUB_ADDRESS
from sparkcluster.staging.model_headers import from_hub, from_path

WIDTH = 110


def main(arguments: Sequence[str], directory: Path = shipped.DIRECTORY) -> int:
    """Record the model that ``arguments`` name; 0, 1 where it cannot be read, 2 where there is no such model."""
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
    document = shipped.document(model, found)
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
