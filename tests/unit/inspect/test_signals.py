"""The meaning of samples of a node and its engine; unknown values have no figure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkcluster.checks import run_stage
from sparkcluster.checks.check import Context
from sparkcluster.facts.running import Reply, Running
from sparkcluster.findings import Finding
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import View, see
from sparkcluster.inspect.signals import between, load, observation, vitals
from sparkcluster.inspect.vitals import EngineSample
from tests.unit.vitals_samples import GIB, MEMORY, sampled

GPU = dict.fromkeys(("utilization_percent", "power_w", "sm_clock_mhz", "temperature_c", "throttle"))


def engine(counts: dict[str, float | None] | None, ttft: dict[str, float] | None = None) -> EngineSample | None:
    found = {"clock_s": 1.0, "counts": counts, "ttft": ttft, "itl": ttft}
    return None if counts is None else EngineSample.model_validate(found)


def test_rates_come_from_counts_between_two_readings():
    before = engine({"hits": 10, "queries": 100, "drafts": 5, "drafted": 15, "accepted": 5, "generated": 50})
    after = engine({"hits": 30, "queries": 200, "drafts": 15, "drafted": 45, "accepted": 20, "generated": 90})
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
    ids=["unread before", "unread after", "restarted", "no queries", "no prefix cache"],
)
def test_an_unknown_counter_has_no_rate(first: dict[str, float | None] | None, last: dict[str, float | None] | None):
    assert between(engine(first), engine(last))["hit_rate"] is None


def test_a_percentile_is_the_upper_bound_of_its_bucket():
    before = engine({}, {"0.1": 5, "0.5": 5, "1.0": 5, "+Inf": 5})
    found = between(before, engine({}, {"0.1": 5, "0.5": 10, "1.0": 15, "+Inf": 15}))
    assert (found["ttft_p50_s"], found["ttft_p95_s"], found["itl_p95_s"]) == (0.5, 1.0, 1.0)
    nothing, restarted = {"0.1": 5, "0.5": 5, "1.0": 5, "+Inf": 5}, {"0.1": 1, "0.5": 9, "1.0": 15, "+Inf": 15}
    for unknown in (nothing, restarted, {"0.1": 5, "0.5": 5, "1.0": 5, "+Inf": 6}, None):
        assert between(before, engine({}, unknown))["ttft_p50_s"] is None


def served(at_s: float, generated: float, **more: Any) -> Any:
    """A sample with an engine that has ``generated`` tokens."""
    counts = {"running": 2.0, "kv_cache": 0.5, "generated": generated, "preemptions": 0.0}
    return sampled(at_s, engine={**counts, **more.pop("counts", {})}, **more)


def test_speed_covers_the_last_two_readings_and_rates_the_last_minute():
    series = [served(at, 10.0 * at, counts={"hits": at, "queries": 2.0 * at}) for at in (0.0, 30.0, 80.0)]
    series += [sampled(84.0), served(85.0, 900.0, counts={"hits": 80.0, "queries": 170.0, "preemptions": 3.0})]
    found = load([*series, sampled(86.0)], "lab/a", 86.5)
    assert found is not None
    assert (found["running"], found["kv_cache"], found["tokens_per_s"]) == (2.0, 0.5, 20.0)
    assert (found["preemptions"], found["hit_rate"]) == (3.0, 50 / 110)
    assert (found["waiting"], found["prompt_tokens_per_s"], found["ttft_p95_s"]) == (None, None, None)


@pytest.mark.parametrize(
    ("series", "now_s"),
    [([], 1.0), ([sampled(1.0)], 1.0), ([served(1.0, 5.0), sampled(16.5)], 17.0)],
    ids=["no sample", "not read", "no longer read"],
)
def test_an_engine_without_readings_has_unknown_activity(series: Any, now_s: float):
    assert load(series, "lab/a", now_s) is None


def test_the_first_reading_of_an_engine_or_after_its_restart_has_no_speed():
    for series in ([served(1.0, 900.0)], [served(1.0, 900.0), served(6.0, 5.0)]):
        found = load(series, "lab/a", 6.0)
        assert found is not None
        assert (found["running"], found["tokens_per_s"]) == (2.0, None)
    # it was restarted and has generated more than before
    counts = ({"preemptions": 9.0}, {"preemptions": 0.0}, {"preemptions": 1.0})
    series = [served(at, 900.0 + at, counts=each) for at, each in zip((1.0, 6.0, 11.0), counts, strict=True)]
    found = load(series, "lab/a", 11.0)
    assert found is not None
    assert found["preemptions"] == 1


def test_times_are_the_nodes_even_if_samples_arrive_late():
    # this machine slept for an hour, and the link stalled: samples that arrive together were taken at different times
    series = [served(1.0, 0.0, clock_s=100.0), served(1.5, 3600.0, clock_s=3700.0), served(1.7, 3650.0, clock_s=3705.0)]
    found = load(series, "lab/a", 2.0)
    assert found is not None
    assert found["tokens_per_s"] == 10.0


def test_a_rebooted_node_has_no_rates_across_the_reboot():
    series = [sampled(1.0, swapped_pages=500, clock_s=9000.0), sampled(60.0, swapped_pages=7, clock_s=20.0)]
    found = vitals(series, 61.0)
    assert found is not None
    assert (found["swapped_pages_per_s"], found["disk_read_per_s"]) == (None, None)


def test_the_load_of_a_node():
    disks = {"nvme0n1": {"read_bytes": 4_000_512, "written_bytes": 1024, "busy_s": 1.0}}
    hca = {"sent_bytes": 4_004_000, "received_bytes": 8000, "errors": {"link_downed": 3, "out_of_sequence": 9}}
    pressure = {"cpu": {"some": 7.0}, "memory": {"some": 1.0}, "io": {"some": 99.0}}
    last = sampled(5.0, disks=disks, rdma={"roceP2p1s0f0": hca}, pressure=pressure, swapped_pages=8, throttle=0x24)
    found = vitals([sampled(1.0), last], 6.0)
    assert found is not None
    assert (found["available_bytes"], found["swap_used_bytes"]) == (24 * GIB, GIB)
    assert (found["disk_read_per_s"], found["disk_written_per_s"], found["swapped_pages_per_s"]) == (1e6, 0.0, 2.0)
    assert found["pressure"] == {"cpu": 0.5, "memory": 0.0, "io": 1.0}
    # the driver counts the other one since now
    assert found["rdma"] == {"roceP2p1s0f0": {"sent_per_s": 1e6, "received_per_s": 0.0, "errors": 2}}
    assert found["gpu"] == {
        "utilization": 0.96,
        "clock_mhz": 2405.0,
        "power_w": 24.3,
        "temperature_c": 51.0,
        "throttle": ["power cap", "thermal, software"],
        "source": "nvidia-smi",
    }
    assert vitals([last], 15.5) is None


def test_missing_devices_of_a_node_are_none():
    bare = {"pressure": {}, "disks": {}, "rdma": {}, "system_w": None, **GPU}
    found = vitals([sampled(1.0, **bare), sampled(2.0, **bare)], 2.0)
    assert found is not None
    assert (found["gpu"], found["rdma"], found["disk_read_per_s"], found["system_power_w"]) == (None, {}, None, None)
    assert set(found["pressure"].values()) == {None}
    partly = vitals([sampled(1.0, **{**GPU, "power_w": 20.0})], 1.0)
    assert partly is not None
    assert (partly["gpu"]["power_w"], partly["gpu"]["utilization"], partly["gpu"]["throttle"]) == (20.0, None, None)


@pytest.mark.parametrize("clocks", [(0.0, 1e-300), (0.0, 1e18), (1e18, 0.0), (5.0, 5.0)])
def test_extreme_numbers_give_finite_numbers(clocks: tuple[float, float]):
    counts = [{"generated": n, "hits": n, "queries": n * 1e-318, "kv_cache": 1e18} for n in (0.0, 1e18)]
    memory = {**MEMORY, "swap_free_bytes": (1 << 63) - 1, "available_bytes": -5}
    series = [
        sampled(at, clock_s=clock, engine=each, memory=memory, swapped_pages=(1 << 62) * int(at))
        for at, clock, each in zip((0.0, 1.0), clocks, counts, strict=True)
    ]
    for part in (series, [series[0], sampled(1.0, clock_s=clocks[1])]):
        json.dumps([load(part, "lab/a", 1.0), vitals(part, 1.0)], allow_nan=False)


@pytest.fixture
def view(world: Any) -> View:
    """Two Sparks that serve release 3."""
    one = world()
    plan = one.plan(3)
    one.run(plan).record(plan, 3)
    hosts = {name: FakeHost(name) for name in one.facts}
    for name, host in hosts.items():
        host.program("probe", one.facts[name].model_dump(mode="json"))
    return see(Fleet(hosts), one.spec)  # type: ignore[arg-type]


ANSWER = Reply("default", "alpha", ttft_s=0.2, tokens=1, text="12")
TIMEOUT = Reply("default", "alpha", problem="timeout", message="no token within 15 s", limit_s=15.0, stalled_s=15.0)


def codes(view: View, reply: Reply, since_s: float | None = None, **series: Any) -> list[tuple[str, str | None]]:
    """Codes of doctor's rules for a running cluster, applied to the stream."""
    return [(each.code, each.node) for each in findings(view, reply, since_s, **series)]


def findings(view: View, reply: Reply, since_s: float | None = None, **series: Any) -> list[Finding]:
    seen = {name: observation(view, name, series.get(name, []), since_s) for name in view.facts}
    running = Running(seen, {"default": reply}, view.newest)
    context = Context(view.spec, view.facts, view.topology, running=running)  # type: ignore[arg-type]
    return run_stage(context, ["running"])


def seconds(count: int, **changed: Any) -> list[Any]:
    """That many samples, with the engine in every fifth."""
    gpu = {"utilization_percent": 5.0, "throttle": 0}
    each_s = [{"engine": {"generated": 100.0, "running": 1.0}} if at % 5 == 0 else {} for at in range(count)]
    return [sampled(float(at), key="atlas/default", **{**gpu, **more, **changed}) for at, more in enumerate(each_s)]


def test_no_doctor_rule_fires_because_of_missing_data_in_the_stream(view: View):
    assert view.ranks.running
    assert codes(view, ANSWER) == []
    assert codes(view, ANSWER, alpha=seconds(2), beta=seconds(2)) == []
    assert codes(view, ANSWER, alpha=seconds(40), beta=seconds(40)) == []
    head = observation(view, "alpha", seconds(40))
    assert isinstance(head.ranks, tuple)
    assert (
        head.ranks[0].launcher["members"]
        == view.groups["default"].plan["nodes"]["alpha"]["containers"][0]["launcher"]["members"]
    )
    assert [each.generated for each in head.counters or ()] == [100.0] * 3  # type: ignore[union-attr]
    assert observation(view, "beta", seconds(40)).counters is None


def test_doctors_rules_are_applied_to_the_stream(view: View):
    slow = {"utilization_percent": 97.0, "power_w": 16.0, "sm_clock_mhz": 507.0}
    assert codes(view, ANSWER, alpha=seconds(20), beta=seconds(20, **slow)) == [("RUN-015", "beta")]
    # a report of nvidia-smi repeated in several samples counts once
    assert codes(view, ANSWER, beta=seconds(4, **slow)) == []
    swaps = [each.model_copy(update={"swapped_pages": 400 * place}) for place, each in enumerate(seconds(20))]
    assert codes(view, ANSWER, beta=swaps) == [("RUN-014", "beta")]
    assert codes(view, TIMEOUT, alpha=seconds(20), beta=seconds(20)) == [("RUN-003", "alpha")]


def test_a_skipped_request_is_not_reported_as_failed(view: View):
    dead = Reply("default", "alpha", problem="engine-dead", message="the engine answers 500")
    (found,) = findings(view, dead, alpha=seconds(20))
    assert (found.code, found.seen) == ("RUN-016", "the engine answers 500")


def test_a_reply_is_judged_by_the_tokens_counted_during_the_request(view: View):
    # the engine was read once since then
    assert ("RUN-003", "alpha") not in codes(view, TIMEOUT, 12.0, alpha=seconds(20), beta=seconds(20))
    assert ("RUN-003", "alpha") in codes(view, TIMEOUT, 9.0, alpha=seconds(20), beta=seconds(20))
