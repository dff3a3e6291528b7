"""Where an engine is asked for its metrics, and what they say."""

from __future__ import annotations

import re


def connectable(host: str | None) -> str:
    """Address at which a program that listens on ``host`` is reached from this node."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host or "127.0.0.1", host or "127.0.0.1")


def metrics(text: str, names: dict[str, list[str]]) -> dict[str, float | None]:
    """Values of an engine's metrics in Prometheus' text form, each the sum over all engines.

    Args:
        text: what ``/metrics`` answers.
        names: metrics by what they count; the first that the engine has is taken.
    """
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = re.match(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\S+)", line)
        if match:
            try:
                found[match.group(1)] = found.get(match.group(1), 0.0) + float(match.group(2))
            except ValueError:
                continue
    return {
        counter: next((found[name] for name in candidates if name in found), None)
        for counter, candidates in names.items()
    }
