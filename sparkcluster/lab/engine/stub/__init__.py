"""A stand-in for vLLM and Ray, for labs and fault tests; see docs/lab-stub.md.

``BIN`` goes on PATH and ``SITE`` on PYTHONPATH. Nothing here imports sparkcluster, nor the other way round.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = HERE / "bin"
SITE = HERE / "site"
