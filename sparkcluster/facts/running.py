"""What a cluster that runs was seen doing: logs, counters, one real completion."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """What ``doctor`` gathered beside the facts."""
