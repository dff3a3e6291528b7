"""The number of cases per fuzz test, and the cluster that all tests attack."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

FULL = os.environ.get("SPARKCLUSTER_FUZZ") == "full"
"""Set by ``./scripts/test --full``."""


def cases(plain: int, full: int) -> Any:
    """Decorator: ``plain`` cases, ``full`` with ``--full``; the same cases in every run."""
    return settings(
        max_examples=full if FULL else plain,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The cluster of ``fleet.Cluster``; it starts no program, does not wait, and stays in the test's directories."""
    from .fleet import Cluster, alone

    with pytest.MonkeyPatch.context() as patched:
        folder = tmp_path_factory.mktemp("attacked")
        alone(patched, folder)
        yield Cluster(folder, patched)
