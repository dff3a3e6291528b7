"""How far a pull of the Docker engine is, from the documents of its stream. Pure.

overlay2 reports bytes while it unpacks; containerd's image store nothing, or seconds since Docker 28 (moby#49064).
"""

from __future__ import annotations

import collections
from typing import Any

STALL_S, UNPACK_STALL_S = 300.0, 1200.0
_RATE_S = 30.0


class _Layer:
    """One layer: a resumed request reports what remains, so ``base`` is what came before it."""

    def __init__(self) -> None:
        self.base = self.current = 0
        self.total: int | None = None
        self.loaded = self.finished = False

    @property
    def done(self) -> int:
        """Bytes that were downloaded."""
        return self.base + self.current


class Progress:
    """What the documents so far say.

    Attributes:
        moved_at: when a byte came last, a layer changed its state, or the engine said that it still unpacks.
        status: the last line about the image, with which a successful pull ends.
    """

    def __init__(self, now: float) -> None:
        self.moved_at = now
        self.status = ""
        self._layers: dict[str, _Layer] = {}
        self._history: collections.deque[tuple[float, int]] = collections.deque([(now, 0)])

    def feed(self, document: dict[str, Any], now: float) -> None:
        """Take one document of the stream; unknown ones count as nothing."""
        status, name = str(document.get("status") or ""), document.get("id")
        if status.startswith(("Status: ", "Digest: ")):
            self.status = status
        if not name or status.startswith("Pulling from "):
            return
        layer = self._layers.setdefault(str(name), _Layer())
        before = (layer.done, layer.loaded, layer.finished)
        detail = document.get("progressDetail") or {}
        current, total = detail.get("current") or 0, detail.get("total") or 0
        if status == "Downloading":
            self._count(layer, current, total)
        elif status in ("Download complete", "Verifying Checksum", "Extracting") and not layer.loaded:
            layer.loaded, layer.current = True, layer.total or layer.current
        elif status in ("Pull complete", "Already exists"):
            layer.loaded = layer.finished = True
            layer.current = layer.total or layer.current
        if (layer.done, layer.loaded, layer.finished) != before or (status == "Extracting" and current):
            self.moved_at = now

    def _count(self, layer: _Layer, current: int, total: int) -> None:
        if layer.total is not None and 0 < total < layer.total:
            layer.base += layer.total - total
        elif current < layer.current:
            layer.base = 0  # it begins again from its first byte
        layer.current, layer.total, layer.loaded = current, total if total > 0 else layer.total, False

    @property
    def done_bytes(self) -> int:
        """Bytes that were downloaded, those of an earlier pull included where the store kept them."""
        return sum(layer.done for layer in self._layers.values())

    @property
    def total_bytes(self) -> int | None:
        """Size of all layers to download; None until the engine has told that of each."""
        if any(layer.total is None and not layer.loaded for layer in self._layers.values()):
            return None
        return sum(layer.base + (layer.total or 0) for layer in self._layers.values()) or None

    @property
    def phase(self) -> str:
        """What the engine does: resolve, download or unpack."""
        if not self._layers:
            return "resolve"
        return "unpack" if all(layer.loaded for layer in self._layers.values()) else "download"

    def rate_bytes_s(self, now: float) -> float:
        """Bytes per second over the last 30 s in which this was called."""
        while len(self._history) > 1 and now - self._history[1][0] > _RATE_S:
            self._history.popleft()
        since, bytes_then = self._history[0]
        if now - self._history[-1][0] >= 1:
            self._history.append((now, self.done_bytes))
        return max(0.0, (self.done_bytes - bytes_then) / max(1.0, now - since))

    def as_json(self, now: float) -> dict[str, Any]:
        """What the controller shows."""
        total, rate = self.total_bytes, self.rate_bytes_s(now)
        remaining = (total - self.done_bytes) / rate if total and rate else None
        counted = [layer.finished if self.phase == "unpack" else layer.loaded for layer in self._layers.values()]
        return {
            "phase": self.phase,
            "bytes": self.done_bytes,
            "total": total or 0,
            "layers": sum(counted),
            "layers_total": len(counted),
            "rate_bytes_s": round(rate),
            "remaining_s": None if remaining is None else round(remaining),
        }

    def stalled(self, now: float) -> str | None:
        """Why the pull is given up; None while it moves."""
        unpacks = self.phase == "unpack"
        limit_s = UNPACK_STALL_S if unpacks else STALL_S
        what = "nothing was unpacked" if unpacks else "no byte came"
        return "%s for %.0f s" % (what, limit_s) if now - self.moved_at > limit_s else None
