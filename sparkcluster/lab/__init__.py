"""Virtual Sparks on this machine: ``from sparkcluster.lab import Lab``.

Imported lazily, since booting a Spark imports only one module of this package and must be fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkcluster.errors import LabError
    from sparkcluster.lab.core import Lab, down
    from sparkcluster.lab.sparks import Spark

__all__ = ["Lab", "LabError", "Spark", "down"]

_HOME = {
    "Lab": "sparkcluster.lab.core",
    "LabError": "sparkcluster.errors",
    "Spark": "sparkcluster.lab.sparks",
    "down": "sparkcluster.lab.core",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
