"""Builds of a lab's image that lack programs, or are large."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from sparkcluster.lab import Lab, builds
from sparkcluster.lab.engine.stub import SITE

PROGRAMS = {
    name: (f"usr/local/bin/{name}", *(f"opt/stub/site/{path.name}" for path in SITE.glob(f"{name}*")))
    for name in ("vllm", "ray")
}
"""What an image without a program lacks."""


def load(lab: Lab, name: str, *, without: Sequence[str] = (), layer_bytes: int = 0, **build: Any) -> str:
    """``builds.load``, without programs, and with ``layer_bytes`` that do not compress."""
    hidden = [_whiteout(path) for program in without for path in PROGRAMS[program]]
    more = {"etc/lab-bytes": random.Random(name).randbytes(layer_bytes)} if layer_bytes else {}
    return builds.load(lab, name, files={**more, **dict.fromkeys(hidden, b"")}, **build)


def _whiteout(path: str) -> str:
    """The entry of a layer that hides ``path`` of those below."""
    parent, _, name = path.rpartition("/")
    return f"{parent}/.wh.{name}"
