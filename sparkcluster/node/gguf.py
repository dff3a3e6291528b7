"""Reads the header of a GGUF file: the model's metadata, and the expected file size. Pure.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Block sizes of tensor types: ``GGML_QUANT_SIZES`` in
gguf-py/gguf/constants.py of https://github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

import math
import struct
from typing import Any, BinaryIO

from sparkcluster.node import model_choice

MOST = 1 << 20
"""Maximum entries of a header, and bytes of a text in it: larger values are invalid (vocabularies have 300,000)."""
KEYS, DIMENSIONS = 1024, 4
"""Maximum keys and dimensions: models have fewer than 100 keys, tensors four dimensions (``GGML_MAX_DIMS``)."""
TEXT, NUMBERS, KEPT = 256, 1024, 1 << 16
"""Maximum length kept of a text, of a list of numbers, and of all lists; of longer ones only the length is kept."""

_STRING, _ARRAY = 8, 9
_VALUES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_REAL = "fd"  # may be NaN; not used
# By type: numbers in a block, and bytes of a block.
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66),
    17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136),
    24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54),
    35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip


class _Reader:
    def __init__(self, file: BinaryIO) -> None:
        self.file, self.read, self.kept = file, 0, 0

    def bytes(self, count: int) -> bytes:
        found = self.file.read(count)
        if len(found) < count:
            raise EOFError("the header is cut off")
        self.read += count
        return found

    def numbers(self, form: str, count: int = 1) -> tuple[Any, ...]:
        form = "<%d%s" % (count, form)
        return struct.unpack(form, self.bytes(struct.calcsize(form)))

    def count(self, size: int = 8) -> int:
        found = int.from_bytes(self.bytes(size), "little")
        if found > MOST:
            raise ValueError("a count of %d in its header" % found)
        return found

    def text(self) -> str:
        return self.bytes(self.count()).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.count(4), self.count()
            if inner in _VALUES:
                found = self.numbers(_VALUES[inner], count)
                if count > min(NUMBERS, KEPT - self.kept) or _VALUES[inner] in _REAL:
                    return count
                self.kept += count
                return list(found)
            if inner != _STRING:
                raise ValueError("a list of unknown type %d in its header" % inner)
            for _ in range(count):
                self.bytes(self.count())
            return count
        if kind not in _VALUES:
            raise ValueError("a value of unknown type %d in its header" % kind)
        found = self.numbers(_VALUES[kind])
        return None if _VALUES[kind] in _REAL else found[0]


def read(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """The metadata in the header of ``file``, and the expected size of the file in bytes.

    Long texts and lists are replaced by their length.

    Raises:
        ValueError: it is not a GGUF file.
        EOFError: the file ends before its header does.
    """
    reader, found, end = _Reader(file), {}, 0
    if reader.bytes(4) != b"GGUF" or reader.count(4) not in (2, 3):
        raise ValueError("not a GGUF file of version 2 or 3")
    tensors, entries = reader.count(), reader.count()
    if entries > KEYS:
        raise ValueError("%d keys in its header" % entries)
    for _ in range(entries):
        key, value = reader.text(), reader.value(reader.count(4))
        found[key[:TEXT]] = len(value) if isinstance(value, str) and len(value) > TEXT else value
    for _ in range(tensors):
        reader.text()
        dimensions = reader.count(4)
        if dimensions > DIMENSIONS:
            raise ValueError("a tensor of %d dimensions in its header" % dimensions)
        shape = reader.numbers("Q", dimensions)
        kind, offset = *reader.numbers("I"), *reader.numbers("Q")
        block, size = _BLOCKS.get(kind, (1, 0))  # for a newer type only its start is known
        end = max(end, offset + math.prod(shape) // block * size)
    unit = found.get("general.alignment")
    unit = unit if isinstance(unit, int) and 0 < unit <= MOST else 32
    return found, -(-reader.read // unit) * unit + end


def series(file: str) -> list[str]:
    """All files of a split model, by its first file, such as ``x-00001-of-00003.gguf``; else only ``file``."""
    return model_choice.series_of([file], None) or [file]
