"""Which of several models on a node is ended first where its memory runs out, and when. Pure."""

from __future__ import annotations

from sparkcluster.spec import Spec

FLOOR_BYTES = 5 * 2**30
"""MemAvailable below which a model ends: what the guardian of RyderFreeman4Logos/gb10-services keeps free."""


def victim(spec: Spec) -> dict[str, int] | None:
    """What the launcher gets of it; None where no other model is on a node of this one.

    ``order`` is the place among the victims, from 0: that of ``victim`` in the inventory, and after all of them for a
    model without.
    """
    last = len(spec.siblings)
    if not last:
        return None
    return {"order": last if spec.victim is None else min(spec.victim - 1, last), "floor_bytes": FLOOR_BYTES}
