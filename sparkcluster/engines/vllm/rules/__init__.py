"""What is known to go wrong on SM121, as rules over image, driver, checkpoint and flags."""

from __future__ import annotations

from sparkcluster.engines.vllm.rules import (
    defects,
    files,
    flags,
    images,
    kernels,
    launch,
    memory,
    parsers,
    quantisation,
    speculative,
    unjudged,
)

__all__ = [
    "defects",
    "files",
    "flags",
    "images",
    "kernels",
    "launch",
    "memory",
    "parsers",
    "quantisation",
    "speculative",
    "unjudged",
]
