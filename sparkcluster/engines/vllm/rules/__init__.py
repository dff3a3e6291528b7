"""Known problems on SM121, as rules over image, driver, checkpoint and flags."""

from __future__ import annotations

from sparkcluster.engines.vllm.rules import flags, images, kernels, launch, speculative, table

__all__ = ["flags", "images", "kernels", "launch", "speculative", "table"]
