"""Builds of a lab's image that lack programs or are large."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster.lab import Lab, builds, images
from sparkcluster.lab.engine.stub import SITE

PROGRAMS = {
    name: (f"usr/local/bin/{name}", *(f"opt/stub/site/{path.name}" for path in SITE.glob(f"{name}*")))
    for name in ("vllm", "ray")
}
"""The missing part of an image without a program."""


def load(
    lab: Lab,
    name: str,
    *,
    without: Sequence[str] = (),
    layer_bytes: int = 0,
    files: Mapping[str, bytes] | None = None,
    **build: Any,
) -> str:
    """``builds.load`` without some programs, and with ``layer_bytes`` of incompressible data."""
    hidden = [_whiteout(path) for program in without for path in PROGRAMS[program]]
    more = {"etc/lab-bytes": random.Random(name).randbytes(layer_bytes)} if layer_bytes else {}
    return builds.load(lab, name, files={**(files or {}), **more, **dict.fromkeys(hidden, b"")}, **build)


def replace(lab: Lab, **build: Any) -> None:
    """Give the name of the lab's image to another build, on every Spark."""
    reference = images.prepare(lab.state.engine).reference
    other = load(lab, "other", **build)
    for spark in lab.sparks:
        spark.run(["sh", "-c", 'docker tag "$1" "$2" && docker rmi "$1"', "sh", other, reference])


def _whiteout(path: str) -> str:
    """The layer entry that hides ``path`` of lower layers."""
    parent, _, name = path.rpartition("/")
    return f"{parent}/.wh.{name}"
