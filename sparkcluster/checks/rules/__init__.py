"""What is known to go wrong on SM121, as rules over image, driver, checkpoint and flags."""

from __future__ import annotations

from sparkcluster.checks.rules import codes, flags, images, kernels, launch, memory, parsers, quantisation, speculative

__all__ = ["codes", "flags", "images", "kernels", "launch", "memory", "parsers", "quantisation", "speculative"]
