"""How many cases each fuzz test runs, how long one may take, and the cluster that all of them attack."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

FULL = os.environ.get("SPARKCLUSTER_FUZZ") == "full"
"""Set by ``./scripts/test --full``."""
CPU_S = 2.0


def cases(plain: int, full: int) -> Any:
    """Decorator: ``plain`` cases, ``full`` with ``--full``; the same ones in every run."""
    return settings(
        max_examples=full if FULL else plain,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Fail where the block takes more than ``CPU_S`` of CPU time, however busy the machine is."""
    began = time.process_time()
    yield
    took_s = time.process_time() - began
    assert took_s < CPU_S, f"took {took_s:.1f} s of CPU time"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The cluster of ``fleet.Cluster``; nothing of it starts a program, waits, or leaves the test's directories."""
    from .fleet import Cluster, alone

    with pytest.MonkeyPatch.context() as patched:
        folder = tmp_path_factory.mktemp("attacked")
        alone(patched, folder)
        yield Cluster(folder, patched)
