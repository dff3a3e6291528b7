"""Nodes are sampled independently, lost ones are reconnected, and none can send more than requested."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

from sparkcluster.endpoint.find import Endpoint
from sparkcluster.engines.vllm import ENGINE
from sparkcluster.errors import CommandFailed, HostError, HostLost
from sparkcluster.hosts.fake import FakeHost, FakeStream
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.local import LocalHost
from sparkcluster.inspect import vitals
from sparkcluster.inspect.vitals import Sample, Sampler
from tests.unit.vitals_samples import DOCUMENT, sampled

AT = Endpoint("a", "ends", "http://127.0.0.1:8000/v1", "m", "/state/key", "KEY")


def fleet(*hosts: Any) -> Fleet:
    return Fleet({host.name: host for host in hosts})


def until(holds: Callable[[], Any], limit_s: float = 20) -> None:
    ends = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_node_with_an_ended_or_invalid_stream_loses_only_its_own_series():
    ends = FakeHost("ends").program("vitals", [DOCUMENT, DOCUMENT])
    lies = FakeHost("lies").program("vitals", [DOCUMENT, {**DOCUMENT, "memory": "much"}])
    nodes = fleet(LocalHost("alpha"), ends, lies)
    with Sampler(nodes, nodes.names, {"ends": {"lab/a": (AT, ENGINE)}}) as sampler:
        called_s = sampler.now_s()
        assert sampler.fresh("alpha", 20).at_s > called_s
        for name in ("ends", "lies"):
            with pytest.raises(HostError) as failed:
                sampler.fresh(name, 20)
            assert failed.value.node == name
        assert "alpha" not in sampler.lost
        sampler.fresh("alpha", 20)
        # of two simultaneous samples one is kept: a node sends one per second
        assert [len(sampler.samples[name]) for name in ("ends", "lies")] == [1, 1]
    assert "memory" in sampler.lost["lies"].message
    ((_, request),) = ends.requests
    known = {"url": AT.url, "key_file": AT.key_file, "key_name": "KEY"}
    assert known.items() <= request["engines"]["lab/a"].items()
    assert {"running", "hits", "itl"} <= set(request["engines"]["lab/a"]["metrics"])


class LateSample(FakeStream):
    """One sample, some time after the request."""

    limits: dict[str, float] = {}

    def lines(self, silence_s: float, **limits: float) -> Iterator[bytes]:
        LateSample.limits = limits
        time.sleep(0.1)
        yield from super().lines(silence_s)
        time.sleep(1)


def test_a_sample_in_transit_is_not_fresh(monkeypatch: pytest.MonkeyPatch):
    host = FakeHost("alpha").program("vitals", [DOCUMENT])
    monkeypatch.setattr(host, "stream", lambda argv, stdin: LateSample(host.run(argv, stdin=stdin)))
    with Sampler(fleet(host), ["alpha"], {}) as sampler:
        with pytest.raises(HostError, match="alpha sent no sample"):
            sampler.fresh("alpha", 0.4)
        assert not sampler.lost
    assert LateSample.limits["line_bytes"] == 1 << 16  # a longer line is not a sample


class ScriptedConversation:
    """A conversation in which a node sends the items of ``says``, or raises them if they are errors."""

    says: Callable[[str, int], Iterator[Any]]
    requests: list[tuple[str, dict[str, Any]]]

    def __init__(self, host: Any, _module: str, request: dict[str, Any], **_limits: Any) -> None:
        self.requests.append((host.name, request))
        self.said = self.says(host.name, [name for name, _ in self.requests].count(host.name))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.said = iter(())

    def answer(self, kind: Any) -> Any:
        found = next(self.said, HostLost("the connection broke"))
        if isinstance(found, Exception):
            raise found
        return kind.model_validate(found)


@pytest.fixture
def conversations(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], type[ScriptedConversation]]:
    def make(says: Callable[[str, int], Iterator[Any]]) -> type[ScriptedConversation]:
        kind = type("Said", (ScriptedConversation,), {"says": staticmethod(says), "requests": []})
        monkeypatch.setattr(vitals, "Samples", kind)
        monkeypatch.setattr(vitals, "_SOONEST_S", 0.0)
        return kind

    return make


def test_a_lost_node_is_reached_over_a_new_connection_and_its_series_continues(conversations: Any):
    def says(_name: str, time_of: int) -> Iterator[Any]:
        if time_of == 2:
            raise HostLost("no route to alpha")
        if time_of == 3:
            raise CommandFailed("vitals failed on alpha")
        yield DOCUMENT
        while time_of > 3:
            time.sleep(0.02)
            yield DOCUMENT

    kind, host, renewed = conversations(says), FakeHost("alpha"), []
    host.renew = lambda: renewed.append(1)  # type: ignore[method-assign]
    with Sampler(fleet(host), ["alpha"], {}, retry_s=0.01) as sampler:
        until(lambda: len(sampler.samples["alpha"]) > 2)
        assert not sampler.lost
    # not where the program failed: others use the connection
    assert (len(kind.requests), len(renewed)) == (4, 2)


def test_engines_are_read_by_a_separate_program_and_the_newest_samples_are_kept(conversations: Any):
    def says(_name: str, _time: int) -> Iterator[Any]:
        for at in itertools.count():
            time.sleep(0.01)
            engine = {"clock_s": at, "counts": {}}
            yield {**DOCUMENT, "clock_s": at, "engines": {"lab/a": engine, "lab/other": engine}}

    kind = conversations(says)
    with Sampler(fleet(FakeHost("alpha")), ["alpha"], {}, keep=5) as sampler:
        until(lambda: len(sampler.samples["alpha"]) == 5)
        before = sampler.samples["alpha"]
        sampler.engines = {"alpha": {"lab/a": (AT, ENGINE)}}
        until(lambda: sampler.samples["alpha"][-1].engines)
        assert sampler.samples["alpha"][-1].engines.keys() == {"lab/a"}  # the other one was not requested
        assert (len(sampler.samples["alpha"]), len(before)) == (5, 5)
    assert [set(request["engines"]) for _, request in kind.requests] == [set(), {"lab/a"}]


def test_a_hanging_or_endless_node_delays_no_other(conversations: Any, monkeypatch: pytest.MonkeyPatch):
    def says(name: str, _time: int) -> Iterator[Any]:
        while True:
            if name == "hung":
                time.sleep(60)
            if name == "calm":
                time.sleep(0.25)
            yield DOCUMENT

    conversations(says)
    monkeypatch.setattr(vitals, "_SOONEST_S", 0.2)
    with Sampler(fleet(*map(FakeHost, ("hung", "calm", "endless"))), ["hung", "endless", "calm"], {}) as sampler:
        until(lambda: len(sampler.samples["calm"]) == 4)
        assert not sampler.samples["hung"]
        times = [each.at_s for each in sampler.samples["endless"]]
        assert all(later - sooner >= 0.2 for sooner, later in itertools.pairwise(times))


@pytest.mark.parametrize(
    "wrong",
    [
        {"swapped_pages": -1},
        {"swapped_pages": 1 << 63},
        {"power_w": "nan"},
        {"power_w": 1e300},
        {"clock_s": math.inf},
        {"engines": {"lab/a": {"clock_s": 1.0, "counts": {"hits": 1e300}}}},
        {"engines": {"lab/a": {"clock_s": 1.0, "counts": {}, "ttft": {"x": 1.0}}}},
        {"engines": {"lab/a": {"clock_s": 1.0, "counts": {}, "ttft": {str(bound): 1.0 for bound in range(65)}}}},
        {"engines": {"lab/a": {"clock_s": 1.0, "counts": {str(name): 1.0 for name in range(33)}}}},
        {"disks": {f"sd{number}": DOCUMENT["disks"]["nvme0n1"] for number in range(65)}},
        {"rdma": {"mlx5_0\n# TYPE": DOCUMENT["rdma"]["roceP2p1s0f0"]}},
        {"pressure": {"love": {"some": 1.0}}},
    ],
)
def test_a_node_cannot_send_values_that_are_not_finite_numbers(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match=r"validation error"):
        Sample.model_validate({**DOCUMENT, **wrong})


def test_figures_for_bench_come_from_the_only_engine_and_all_hcas():
    assert sampled(engine={"running": 3.0}).count("running") == 3
    assert (sampled(engine={"running": None}).count("running"), sampled().count("running")) == (0, 0)
    assert (sampled().rdma_bytes, sampled(rdma={}).rdma_bytes) == (12000, None)
