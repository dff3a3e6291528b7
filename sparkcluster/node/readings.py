"""Runs readers concurrently: one that fails or hangs costs its own reading alone, which is ``{"unread": "why"}``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from sparkcluster.node.machine import Unreadable, because

_DEPTH = 60  # of nesting; readers of the document have a limit, too


class Readings:
    """Readers in threads, and what they returned within ``limit_s`` after the first of them could start.

    Args:
        grace_s: added to every limit, so that the limit of a program ends first and is reported.
    """

    def __init__(self, limit_s: float, grace_s: float = 0.0) -> None:
        self._limit_s = limit_s
        self._began = time.monotonic() + grace_s
        self._values: dict[str, Any] = {}
        self._threads: dict[str, threading.Thread] = {}

    def start(self, key: str, reader: Callable[[], Any]) -> None:
        """Start a reader; its thread is a daemon, so that a hanging disk does not block the exit."""

        def work() -> None:
            try:
                self._values[key] = clean(reader())
            except Exception as error:
                self._values[key] = {"unread": because(error)}

        self._threads[key] = threading.Thread(target=work, name=key, daemon=True)
        self._threads[key].start()

    def value(self, key: str, limit_s: float | None = None) -> Any:
        """What the reader of ``key`` returned, or why it returned nothing; None where there is no such reader."""
        if key not in self._threads:
            return None
        limit_s = self._limit_s if limit_s is None else limit_s
        self._threads[key].join(max(0.0, self._began + limit_s - time.monotonic()))
        return self._values.get(key, {"unread": "no answer within %g s" % limit_s})


def clean(value: Any, depth: int = 0) -> Any:
    """``value`` without lone surrogates (from names that are not UTF-8); Unreadable if nested too deeply for JSON."""
    if depth > _DEPTH:
        raise Unreadable("nested deeper than %d levels" % _DEPTH)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {clean(key): clean(each, depth + 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(clean(each, depth + 1) for each in value)
    return value
