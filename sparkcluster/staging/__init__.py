"""Putting weights and image on every node."""

from sparkcluster.staging.plan import Staging, missing
from sparkcluster.staging.run import Copied, StageReport, stage

__all__ = ["Copied", "StageReport", "Staging", "missing", "stage"]
