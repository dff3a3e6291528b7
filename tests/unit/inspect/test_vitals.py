"""Nodes are sampled apart from each other, and counters are compared between two samples."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from sparkcluster.engines.vllm import ENGINE
from sparkcluster.errors import HostError
from sparkcluster.hosts.fake import FakeHost, FakeStream
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.local import LocalHost
from sparkcluster.inspect.vitals import Sample, Sampler, between

DOCUMENT: dict[str, Any] = {
    "memory": 1 << 36, "swapped_pages": 0, "rdma_bytes": None, "system_w": 61.5, "at_s": 1.0, "power_w": 24.3,
    "sm_clock_mhz": 2405.0, "throttle": 32, "engine": None,
}  # fmt: skip


def sample(engine: dict[str, float | None] | None, ttft: dict[str, float] | None = None) -> Sample:
    return Sample.model_validate({**DOCUMENT, "engine": engine, "ttft": ttft})


def test_a_node_that_ends_or_says_nonsense_ends_its_own_series_alone():
    ends = FakeHost("ends").program("vitals", [DOCUMENT, DOCUMENT])
    lies = FakeHost("lies").program("vitals", [DOCUMENT, {**DOCUMENT, "memory": "much"}])
    fleet = Fleet({"alpha": LocalHost("alpha"), "ends": ends, "lies": lies})  # type: ignore[dict-item]
    with Sampler(fleet, fleet.names, {"ends": "http://127.0.0.1:8000/v1"}, ENGINE) as sampler:
        called_s = sampler.now_s()
        assert sampler.fresh("alpha", 20).at_s > called_s
        for name in ("ends", "lies"):
            with pytest.raises(HostError) as failed:
                sampler.fresh(name, 20)
            assert failed.value.node == name
        assert "alpha" not in sampler.lost
        sampler.fresh("alpha", 20)
        # of two at once one is kept: a node sends one a second
        assert [len(sampler.samples[name]) for name in ("ends", "lies")] == [1, 1]
    assert "memory" in sampler.lost["lies"]
    ((_, request),) = ends.requests
    assert request["engine"].endswith("/v1")
    assert {"running", "hits"} <= set(request["metrics"])


class Late(FakeStream):
    """One sample, some time after it was asked for."""

    def lines(self, silence_s: float, **limits: float) -> Iterator[bytes]:
        time.sleep(0.1)
        yield from super().lines(silence_s)
        time.sleep(1)


def test_a_sample_that_was_on_its_way_is_not_fresh(monkeypatch: pytest.MonkeyPatch):
    host = FakeHost("alpha").program("vitals", [DOCUMENT])
    monkeypatch.setattr(host, "stream", lambda argv, stdin: Late(host.run(argv, stdin=stdin)))
    with Sampler(Fleet({"alpha": host}), ["alpha"], {}, ENGINE) as sampler:  # type: ignore[dict-item]
        with pytest.raises(HostError, match="alpha sent no sample"):
            sampler.fresh("alpha", 0.4)
        assert not sampler.lost


def test_rates_are_of_what_was_counted_in_between():
    before = sample({"hits": 10, "queries": 100, "drafts": 5, "drafted": 15, "accepted": 5, "generated": 50})
    after = sample({"hits": 30, "queries": 200, "drafts": 15, "drafted": 45, "accepted": 20, "generated": 90})
    found = between(before, after)
    assert (found["hit_rate"], found["acceptance"], found["accepted_length"]) == (0.2, 0.5, 2.5)
    assert (found["generated"], found["hits"], found["preemptions"]) == (40, 20, None)


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (None, {"hits": 1, "queries": 2}),
        ({"hits": 1, "queries": 2}, None),
        ({"hits": 5, "queries": 9}, {"hits": 1, "queries": 2}),
        ({"hits": 1, "queries": 2}, {"hits": 1, "queries": 2}),
        ({"hits": None, "queries": None}, {"hits": None, "queries": None}),
    ],
    ids=["unread before", "unread after", "restarted", "nothing looked up", "no prefix cache"],
)
def test_what_is_not_known_is_no_rate(first: dict[str, float | None] | None, last: dict[str, float | None] | None):
    assert between(sample(first), sample(last))["hit_rate"] is None


def test_a_percentile_is_the_upper_bound_of_its_bucket():
    before = sample({}, {"0.1": 5, "0.5": 5, "1.0": 5, "+Inf": 5})
    found = between(before, sample({}, {"0.1": 5, "0.5": 10, "1.0": 15, "+Inf": 15}))
    assert (found["ttft_p50_s"], found["ttft_p95_s"]) == (0.5, 1.0)
    nothing, restarted = {"0.1": 5, "0.5": 5, "1.0": 5, "+Inf": 5}, {"0.1": 1, "0.5": 9, "1.0": 15, "+Inf": 15}
    for unknown in (nothing, restarted, {"0.1": 5, "0.5": 5, "1.0": 5, "+Inf": 6}, None):
        assert between(before, sample({}, unknown))["ttft_p50_s"] is None


def test_a_node_cannot_send_what_is_no_number():
    for wrong in ({"memory": -1}, {"power_w": "nan"}, {"ttft": {"x": 1.0}}):
        with pytest.raises(ValueError, match=r"validation error"):
            Sample.model_validate({**DOCUMENT, **wrong})
