"""``--no-rollback``: what a failed switch leaves for study."""

from __future__ import annotations

from pathlib import Path

from sparkcluster.errors import LaunchError, SparkclusterError
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import bundle
from sparkcluster.inspect.doctor import doctor
from sparkcluster.report import Report
from sparkcluster.runtime import failed_logs
from sparkcluster.spec import Spec

DOCTOR_S = 30.0


def keep(fleet: Fleet, spec: Spec, error: LaunchError, source: int, report: Report) -> None:
    """Write a bundle about the ranks that a failed switch left; ``error`` says where, and what ends it.

    Args:
        fleet: the connections.
        spec: what was switched to.
        error: how the switch failed.
        source: the release that served before; 0 if there was none.
        report: told what is read.
    """
    written = _bundle(fleet, spec, report)
    ends = f"rollback INVENTORY {source}   serves release {source} again" if source else "down INVENTORY"
    parts = [error.hint, f"bundle: {written}" if written else None, f"sparkcluster {ends}"]
    error.hint = "; ".join(part for part in parts if part)


def _bundle(fleet: Fleet, spec: Spec, report: Report) -> Path | None:
    path = failed_logs.directory(spec.inventory.cluster) / "bundle.tar.gz"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = doctor(fleet, spec, DOCTOR_S, report)
        bundle.write(path, found, bundle.gather(fleet, found.view, report, changes=False))
    except (SparkclusterError, OSError) as error:
        report.note(f"no bundle was written: {error}")
        return None
    return path
