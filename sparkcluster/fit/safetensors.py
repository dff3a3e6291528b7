"""Headers of safetensors files: names and sizes of tensors, without the tensors.

The format is eight bytes with the header's length, little-endian, the header as JSON, and the data
(https://huggingface.co/docs/safetensors). The safetensors library only opens whole files on disk, and this reader can
refuse a length before it reads that much.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from sparkcluster.errors import UsageError

LENGTH_BYTES = 8
HEADER_LIMIT = 100_000_000
"""The library's limit on a header, in bytes."""
INDEX_LIMIT = 200_000_000
FILES_LIMIT = 4096
TENSORS_LIMIT = 4_000_000
TOTAL_LIMIT = 256_000_000
"""All headers of a model together, in bytes; those of the largest checkpoints have some 30 MB."""

BITS = {
    **dict.fromkeys(("F64", "I64", "U64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


class Budget:
    """What may still be read of a model: bytes of headers and tensors, all of its files together. Safe for threads."""

    def __init__(self) -> None:
        self._bytes, self._tensors = TOTAL_LIMIT, TENSORS_LIMIT
        self._lock = threading.Lock()

    def take(self, name: str, *, size_bytes: int = 0, tensors: int = 0) -> None:
        """Count what is read of the file ``name``; UsageError where the whole is too much."""
        with self._lock:
            self._bytes -= size_bytes
            self._tensors -= tensors
            if self._bytes < 0:
                raise _broken(name, f"and the files before it have headers of more than {TOTAL_LIMIT:,} bytes")
            if self._tensors < 0:
                raise _broken(name, f"and the files before it have more than {TENSORS_LIMIT:,} tensors")


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


def of_checkpoint(names: Iterable[str]) -> list[str]:
    """The files among ``names`` that an engine loads, sorted.

    Repositories may have the same weights twice: in subdirectories, or as Mistral's ``consolidated`` files.
    """
    files = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
    return [name for name in files if not name.startswith("consolidated")] or files


def header_length(first: bytes, size_bytes: int | None, name: str, budget: Budget) -> int:
    """Length of a header, by the first eight bytes of a file of ``size_bytes`` (None if unknown).

    Raises:
        UsageError: the file is truncated, or not a safetensors file, or ``budget`` is used up.
    """
    if len(first) < LENGTH_BYTES:
        raise _broken(name, f"has {len(first)} bytes; a safetensors file has at least eight")
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    if length > HEADER_LIMIT:
        raise _broken(name, f"has a header of {length:,} bytes, and at most {HEADER_LIMIT:,} are allowed")
    if size_bytes is not None and LENGTH_BYTES + length > size_bytes:
        raise _broken(name, f"is truncated: its header has {length:,} bytes, the file {size_bytes:,}")
    budget.take(name, size_bytes=length)
    return length


def header(text: bytes, size_bytes: int | None, name: str, budget: Budget) -> list[Tensor]:
    """The tensors in the header of a file of ``size_bytes`` (None if unknown).

    Raises:
        UsageError: it is not a header, or the file is truncated, or ``budget`` is used up.
    """
    document = _json(text, name)
    budget.take(name, tensors=len(document))
    tensors = [_tensor(key, value, name) for key, value in document.items() if key != "__metadata__"]
    data = max((end for _, end in tensors), default=0)
    if size_bytes is not None and LENGTH_BYTES + len(text) + data > size_bytes:
        missing = LENGTH_BYTES + len(text) + data - size_bytes
        raise _broken(name, f"is truncated: {missing:,} bytes of its tensors are missing")
    return [tensor for tensor, _ in tensors]


def index(text: bytes, name: str) -> list[str]:
    """The files in a model.safetensors.index.json.

    Raises:
        UsageError: it is not an index, or lists a path outside of its directory.
    """
    weights = _json(text, name).get("weight_map")
    if not isinstance(weights, Mapping) or not weights:
        raise _broken(name, "has no weight_map")
    files: set[str] = set()
    for file in weights.values():
        if not isinstance(file, str) or not re.fullmatch(r"[\w][\w.+-]{0,242}\.safetensors", file, re.ASCII):
            raise _broken(name, f"lists {str(file)[:60]!r}, which is not a file in its directory")
        files.add(file)
        if len(files) > FILES_LIMIT:
            raise _broken(name, f"lists more than {FILES_LIMIT} files")
    return sorted(files)


def _json(text: bytes, name: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise _broken(name, "has a header that is not JSON") from None
    if not isinstance(document, dict):
        raise _broken(name, "has a header that is not a mapping")
    return document


def _tensor(key: str, value: object, name: str) -> tuple[Tensor, int]:
    """A tensor, and its end offset in the data."""
    fields = value if isinstance(value, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    tensor = f"has a tensor {key[:60]!r}"
    if not isinstance(dtype, str) or dtype not in BITS:
        raise _broken(name, f"{tensor} of an unknown dtype")
    if not _whole(shape) or len(shape) > 16:  # type: ignore[arg-type]
        raise _broken(name, f"{tensor} without a valid shape")
    if not _whole(offsets) or len(offsets) != 2:  # type: ignore[arg-type]
        raise _broken(name, f"{tensor} without valid offsets")
    start, end = offsets  # type: ignore[misc]
    if end - start != -(-math.prod(shape) * BITS[dtype] // 8):  # type: ignore[arg-type]
        raise _broken(name, f"{tensor} whose offsets do not match its shape")
    return Tensor(key, dtype, tuple(shape), end - start), end  # type: ignore[arg-type]


def _whole(value: object) -> bool:
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 1 << 53 for number in value)


def _broken(name: str, what: str) -> UsageError:
    return UsageError(f"{name} {what}", hint="download the file again")
