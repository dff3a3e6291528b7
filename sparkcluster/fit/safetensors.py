"""Headers of safetensors files: names and sizes of tensors, without the tensors.

The format is eight bytes with the header's length, little-endian, the header as JSON, and the data
(https://huggingface.co/docs/safetensors). The safetensors library opens only complete local files; this reader reads
headers, and checks their length first.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from sparkcluster.errors import UsageError

LENGTH_BYTES = 8
HEADER_LIMIT = 100_000_000
"""The library's limit on a header, in bytes."""
FILES_LIMIT = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a checkpoint."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


def of_checkpoint(names: Iterable[str]) -> list[str]:
    """The files among ``names`` that an engine loads, sorted.

    Repositories may contain a second copy of the weights, in subdirectories or as Mistral's ``consolidated`` files.
    """
    files = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
    return [name for name in files if not name.startswith("consolidated")] or files


def header_end(first: bytes, size_bytes: int | None, name: str) -> int:
    """Offset of the header's end, from the first eight bytes of a file of ``size_bytes`` (None if unknown).

    Raises:
        UsageError: the file is truncated, or not a safetensors file.
    """
    if len(first) < LENGTH_BYTES:
        raise broken(name, f"has {len(first)} bytes, too few for a safetensors file")
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    if length > HEADER_LIMIT:
        raise broken(name, f"has a header of {length:,} bytes; at most {HEADER_LIMIT:,} are allowed")
    if size_bytes is not None and LENGTH_BYTES + length > size_bytes:
        raise broken(name, f"is truncated: its header has {length:,} bytes, but the file {size_bytes:,}")
    return LENGTH_BYTES + length


def header(first: bytes, size_bytes: int | None, name: str) -> list[Tensor]:
    """The tensors of a file of ``size_bytes`` (None if unknown); ``first`` is the file up to its header's end.

    Raises:
        UsageError: invalid header or truncated file.
    """
    listed = document(first[LENGTH_BYTES:], name)
    tensors = [_tensor(key, value, name) for key, value in listed.items() if key != "__metadata__"]
    missing = len(first) + max((end for _, end in tensors), default=0) - (size_bytes or 0)
    if size_bytes is not None and missing > 0:
        raise broken(name, f"is truncated: {missing:,} bytes of its tensors are missing")
    return [tensor for tensor, _ in tensors]


def index(listed: Mapping[str, Any], name: str) -> list[str]:
    """The files in a model.safetensors.index.json.

    Raises:
        UsageError: not an index, or it lists a path outside of its directory.
    """
    weights = listed.get("weight_map")
    if not isinstance(weights, Mapping) or not weights:
        raise broken(name, "has no weight_map")
    files = sorted({str(file) for file in weights.values()})
    for file in files:
        if not re.fullmatch(r"[\w][\w.+-]{0,242}\.safetensors", file, re.ASCII):
            raise broken(name, f"lists {file[:60]!r}, which is not a file in its directory")
    if len(files) > FILES_LIMIT:
        raise broken(name, f"lists more than {FILES_LIMIT} files")
    return files


def document(text: bytes, name: str) -> dict[str, Any]:
    """Parse the JSON of a file or header.

    Raises:
        UsageError: not JSON, or not a mapping.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise broken(name, "is not JSON") from None
    if not isinstance(found, dict):
        raise broken(name, "is not a mapping")
    return found


def broken(name: str, what: str) -> UsageError:
    """The error for an invalid file."""
    return UsageError(f"{name} {what}", hint="download the file again")


def _tensor(key: str, value: object, name: str) -> tuple[Tensor, int]:
    """A tensor, and its end offset in the data."""
    fields = value if isinstance(value, dict) else {}
    shape, offsets = _whole(fields.get("shape")), _whole(fields.get("data_offsets"))
    if shape is None or offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise broken(name, f"has a tensor {key[:60]!r} without a valid shape and offsets")
    start, end = offsets
    return Tensor(key, str(fields.get("dtype")), shape, end - start), end


def _whole(value: object) -> tuple[int, ...] | None:
    """The sizes in a list; None if it is not a list of sizes."""
    if isinstance(value, list) and all(type(number) is int and 0 <= number < 1 << 53 for number in value):
        return tuple(value)
    return None
