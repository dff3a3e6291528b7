"""Interprets samples: current figures of an engine and a node, and observations for doctor's rules. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from sparkcluster.facts.base import Unread
from sparkcluster.facts.running import THROTTLES, Counters, Observation, RankSeen, Traffic
from sparkcluster.inspect.cluster import View
from sparkcluster.inspect.observing import INTERVAL_S
from sparkcluster.inspect.vitals import EngineSample, HcaCounts, Resource, Sample

FRESH_S, SILENT_S = 15.0, 10.0
"""Maximum age of the last reading of an engine, and of the last sample of a node, to count as current."""
RATE_S, RECENT_S = 5.0, 65.0
"""Rates of a node are averages over 5 s; rare events, and figures that need many requests, cover the last minute."""
_LEAST_S = 0.2
"""Minimum time between two samples; a node's clock may be wrong."""
_GAUGES = {"running", "waiting", "kv_cache"}
_COUNTERS = Counters.model_fields.keys() - {"at_s"}


def between(before: EngineSample | None, after: EngineSample | None) -> dict[str, float | None]:
    """The engine's figures between two samples; None if unknown, or if a counter decreased (the engine restarted).

    ``hit_rate`` (share of prompt tokens found in the prefix cache), ``acceptance`` (share of drafted tokens),
    ``accepted_length`` (tokens per step, with the one that needs no draft), ``preemptions``, ``generated``,
    ``prompted`` and ``hits`` (tokens); ``ttft_p50_s``, ``ttft_p95_s``, and for the time between tokens ``itl_p50_s``,
    ``itl_p95_s``: upper bounds from a histogram, None in its last bucket, which has no bound.
    """

    def grown(name: str) -> float:
        first, last = (each.counts.get(name) if each else None for each in (before, after))
        return math.nan if first is None or last is None or last < first else last - first

    def at_most(name: str, share: float) -> float:
        first, last = (getattr(each, name, None) or {} for each in (before, after))
        counts = sorted((bound, count - first.get(bound, 0)) for bound, count in last.items())
        wanted = share * counts[-1][1] if counts and min(count for _, count in counts) >= 0 else 0
        return next((bound for bound, count in counts if count >= wanted > 0 and bound < math.inf), math.nan)

    figures = {
        "hit_rate": grown("hits") / (grown("queries") or math.nan),
        "acceptance": grown("accepted") / (grown("drafted") or math.nan),
        "accepted_length": 1 + grown("accepted") / (grown("drafts") or math.nan),
        **{name: grown(name) for name in ("preemptions", "generated", "prompted", "hits")},
        **{f"{name}_p{share}_s": at_most(name, share / 100) for name in ("ttft", "itl") for share in (50, 95)},
    }
    return {name: figure if math.isfinite(figure) else None for name, figure in figures.items()}


def recent(series: Sequence[Sample]) -> list[Sample]:
    """The samples of the last ``RECENT_S`` by the node's clock, since its last boot."""
    found = list[Sample]()
    for each in reversed(series):
        if found and not found[0].clock_s - RECENT_S <= each.clock_s < found[-1].clock_s:
            break
        found.append(each)
    return found[::-1]


def _readings(series: Sequence[Sample], key: str) -> list[EngineSample]:
    """The recent samples of the engine ``key`` since its last restart, when counters decreased."""
    found = list[EngineSample]()
    for each in recent(series):
        if engine := each.engines.get(key):
            before = found[-1].counts if found else {}
            if any((engine.counts.get(name) or 0) < (before[name] or 0) for name in before.keys() - _GAUGES):
                found.clear()
            found.append(engine)
    return found


def load(series: Sequence[Sample], key: str, now_s: float) -> dict[str, float | None] | None:
    """The current load of the engine ``key``, by the sampler's clock; None if it was not read for ``FRESH_S``.

    ``running``, ``waiting``, ``kv_cache`` (0 to 1) as last read; ``tokens_per_s`` and ``prompt_tokens_per_s`` between
    the last two readings; ``preemptions`` and the rates and times of ``between`` over the last minute. None for
    unknown figures.
    """
    readings = _readings(series, key)
    if not readings or not any(key in each.engines and each.at_s >= now_s - FRESH_S for each in series):
        return None
    before, last = readings[-2:][0], readings[-1]
    step, minute, apart_s = between(before, last), between(readings[0], last), last.clock_s - before.clock_s
    return {
        "running": last.counts.get("running"),
        "waiting": last.counts.get("waiting"),
        "kv_cache": _share(last.counts.get("kv_cache")),
        "tokens_per_s": _rate(0, step["generated"], apart_s),
        "prompt_tokens_per_s": _rate(0, step["prompted"], apart_s),
        **{name: figure for name, figure in minute.items() if name not in {"generated", "prompted", "hits"}},
    }


def vitals(series: Sequence[Sample], now_s: float) -> dict[str, Any] | None:
    """The current figures of a node, by the sampler's clock; None if it sent no sample for ``SILENT_S``.

    Bytes, and bytes/s of all disks and of each HCA; ``pressure`` is the share of time in which some task waited;
    ``errors`` of an HCA cover the last minute. Unknown figures are None; ``gpu`` is None without a report, and has None
    for what nvidia-smi does not support.
    """
    if not series or series[-1].at_s < now_s - SILENT_S:
        return None
    found = recent(series)
    last, oldest = found[-1], found[0]
    first = next(each for each in found if each.clock_s >= last.clock_s - RATE_S)

    def rate(count: Callable[[Sample], float | None]) -> float | None:
        return _rate(count(first), count(last), last.clock_s - first.clock_s)

    def disks(name: str) -> float | None:
        return rate(lambda each: sum(getattr(disk, name) for disk in each.disks.values()) if each.disks else None)

    def pressure(name: Resource) -> float | None:
        return _share(rate(lambda each: each.pressure.get(name, {}).get("some")))

    def hca(name: str, now: HcaCounts) -> dict[str, float | None]:
        before = oldest.rdma.get(name, now).errors
        return {
            "sent_per_s": rate(lambda each: getattr(each.rdma.get(name), "sent_bytes", None)),
            "received_per_s": rate(lambda each: getattr(each.rdma.get(name), "received_bytes", None)),
            "errors": sum(max(0, total - before.get(counter, total)) for counter, total in now.errors.items()),
        }

    memory, percent, mask = last.memory, last.utilization_percent, last.throttle
    gpu = {
        "utilization": None if percent is None else _share(percent / 100),
        "clock_mhz": last.sm_clock_mhz,
        "power_w": last.power_w,
        "temperature_c": last.temperature_c,
        "throttle": None if mask is None else [word for bit, word in THROTTLES.items() if mask & bit],
    }
    return {
        **memory.model_dump(include={"available_bytes", "total_bytes", "cached_bytes"}),
        "swap_used_bytes": max(0, memory.swap_total_bytes - memory.swap_free_bytes),
        "swapped_pages_per_s": rate(lambda each: each.swapped_pages),
        "pressure": {"cpu": pressure("cpu"), "memory": pressure("memory"), "io": pressure("io")},
        "disk_read_per_s": disks("read_bytes"),
        "disk_written_per_s": disks("written_bytes"),
        "rdma": {name: hca(name, now) for name, now in last.rdma.items()},
        "gpu": None if all(each is None for each in gpu.values()) else {**gpu, "source": "nvidia-smi"},
        "system_power_w": last.system_w,
    }


def _share(figure: float | None) -> float | None:
    return None if figure is None else min(1.0, max(0.0, figure))


def _rate(before: float | None, after: float | None, apart_s: float) -> float | None:
    """Growth of a counter per second; None if it decreased or is unknown."""
    if before is None or after is None or after < before or apart_s < _LEAST_S:
        return None
    return (after - before) / apart_s


def observation(view: View, node: str, series: Sequence[Sample], since_s: float | None = None) -> Observation:
    """The observation of ``node`` for doctor's rules, from its facts and the end of ``series``.

    Counters start at ``since_s`` (sampler's clock), the begin of the request whose reply they help to judge; without
    it, and for the GPU, they cover the last ``FRESH_S``. The GPU is omitted unless it was seen for ``RATE_S``, that is
    in two reports; other figures cover the interval that doctor uses.

    Logs, ``/health``, Ray and sockets are missing (empty or None); no rule of doctor fires on them.
    """
    ranks = view.facts[node].ranks
    if not isinstance(ranks, Unread):
        planned = [each for group in view.groups.values() for each in group.plan["nodes"].values()]
        launchers = {container["name"]: container["launcher"] for each in planned for container in each["containers"]}
        ours = [(rank.model_dump(), launchers.get(rank.name, {})) for rank in view.ranks.ours.get(node, ())]
        ranks = tuple(RankSeen.model_validate({**rank, "launcher": launcher}) for rank, launcher in ours)
    if not series:
        return Observation(ranks=ranks)

    def last(seconds: float) -> list[Sample]:
        return [each for each in recent(series) if each.clock_s >= series[-1].clock_s - seconds]

    gpus = [each for each in last(FRESH_S) if each.utilization_percent is not None]
    asked = last(FRESH_S) if since_s is None else [each for each in series if each.at_s >= since_s]
    headed = [f"{view.spec.inventory.cluster}/{name}" for name, each in view.endpoints.items() if each.head == node]
    counters = [
        Counters(at_s=engine.clock_s, **{name: engine.counts.get(name) for name in _COUNTERS})
        for key in headed[:1]
        for engine in _readings(asked, key)
    ]
    ends = last(INTERVAL_S + 0.5)  # samples may be slightly more than a second apart
    return Observation(
        ranks=ranks,
        gpus=tuple(gpus) if gpus and gpus[-1].clock_s - gpus[0].clock_s >= RATE_S else None,
        memory=series[-1].memory,
        counters=tuple(counters) or None,
        traffic=tuple(Traffic(at_s=each.clock_s, swapped_pages=each.swapped_pages) for each in (ends[0], ends[-1])),
    )
