"""The text for Prometheus, made from samples and facts with the real types."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sparkcluster.facts.running import THROTTLES
from sparkcluster.telemetry.exposition import Exposition, text
from tests.unit.telemetry.fake_live import ENGINE, SAMPLE, FakeLive, model, sample


def series(said: bytes) -> dict[str, dict[tuple[str, ...], float]]:
    """Series by name, and by label values in order of the label names; a duplicate is an error."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(said.decode()):
        for each in family.samples:
            of_name = found.setdefault(each.name.removeprefix("sparkcluster_"), {})
            assert tuple(each.labels.values()) not in of_name, each
            of_name[tuple(each.labels.values())] = each.value
    return found


def words(holding: dict[tuple[str, ...], float]) -> set[str]:
    """The active values of a metric's last label, which is a word."""
    return {labels[-1] for labels, holds in holding.items() if holds}


def test_every_metric_has_its_conventional_name_and_unit():
    found = series(text(FakeLive()))
    assert found["node_up"] == {("spark-1",): 1, ("spark-2",): 0}
    assert found["node_memory_available_bytes"] == {("spark-1",): 20 * 1024**3}
    assert found["node_swap_used_bytes"] == {("spark-1",): 1024**3}
    assert found["node_swapped_pages_total"] == {("spark-1",): 12}
    stalled = {("some", "spark-1", "memory"): 1.5, ("full", "spark-1", "memory"): 0.5}
    assert found["node_pressure_seconds_total"] == stalled
    assert found["node_disk_busy_seconds_total"] == {("nvme0n1", "spark-1"): 0.25}
    assert found["node_rdma_errors_total"] == {("out_of_sequence", "rocep1s0f1", "spark-1"): 2}
    assert found["node_gpu_utilization_ratio"] == {("spark-1",): pytest.approx(0.93)}
    assert found["node_gpu_clock_hertz"] == {("spark-1",): 2.405e9}
    assert found["node_gpu_power_watts"] == {("spark-1", "nvidia-smi"): 61}
    assert words(found["node_gpu_throttled"]) == {THROTTLES[0x20]}
    group = ("atlas", "default", "gpt")
    assert found["engine_generated_tokens_total"] == {group: 2048}
    assert found["engine_kv_cache_usage_ratio"] == {group: 0.4375}
    buckets = found["engine_time_to_first_token_seconds_bucket"]
    assert {le: count for (_, _, le, _), count in buckets.items()} == {"0.1": 2, "1.0": 3, "+Inf": 4}
    assert found["engine_time_to_first_token_seconds_sum"] == {group: 1.5}
    assert found["engine_time_to_first_token_seconds_count"] == {group: 4}
    assert found["engine_up"] == {group: 1}
    assert found["release_info"] == {("atlas", "default", "vllm:v1", "gpt", "7", "openai/gpt-oss-120b"): 1}
    assert found["release_timestamp_seconds"] == {("atlas",): 1796004000}
    assert words(found["cluster_state"]) == {"serving"}
    assert found["finding"] == {("atlas", "HOST-017", "spark-1", "warning"): 2}
    assert found["guard_events_total"] == {("atlas", "restart", "spark-1"): 3}
    assert found["check_age_seconds"] == {(): 12.5}


def test_unknown_or_stale_values_have_no_series():
    """Unsupported by the GPU, not drafted, a sum that the engine lacks, an engine that was read long ago, a lost node."""
    found = series(text(FakeLive()))
    for name in ("node_gpu_temperature_celsius", "node_power_watts", "engine_drafts_total"):
        assert name not in found
    assert "engine_inter_token_latency_seconds_bucket" not in found
    assert [node for values in found["node_memory_total_bytes"] for node in values] == ["spark-1"]
    silent = FakeLive(sample(at_s=80.0), sample(engines={}))
    assert "engine_generated_tokens_total" not in series(text(silent))
    stopped = FakeLive(models=[model(state="on demand", groups=[], release=None, released_at=None)])
    assert not {"engine_up", "release_info", "release_timestamp_seconds"} & set(series(text(stopped)))


def test_with_an_engine_read_every_five_seconds_its_newest_reading_is_exported():
    newer = {"atlas/default": {**ENGINE, "counts": {**ENGINE["counts"], "generated": 3000}}}
    live = FakeLive(sample(at_s=91.0), sample(at_s=96.0, engines=newer), sample(engines={}))
    assert set(series(text(live))["engine_generated_tokens_total"].values()) == {3000}


def test_names_invented_by_a_node_are_limited_and_affect_its_own_series_only():
    """Otherwise a node with other disks each second would create ever more series in Prometheus."""
    live = FakeLive()
    exposition = Exposition(live)
    for turn in range(40):
        disks = {f"sd{turn}x{at}": SAMPLE["disks"]["nvme0n1"] for at in range(16)}
        live.sampler.samples = {"spark-1": (sample(disks=disks),), "spark-2": (sample(),)}
        found = {metric.name: metric.samples for metric in exposition.collect()}
    disks_now = [each.labels for each in found["sparkcluster_node_disk_read_bytes"]]
    assert disks_now == [{"node": "spark-2", "disk": "nvme0n1"}]
    released = model(model='a"\n{}' + "x" * 300)
    assert "release_info" not in series(text(FakeLive(models=[released])))


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool of Debian's package prometheus")
def test_promtool_reports_no_problem():
    done = subprocess.run(["promtool", "check", "metrics"], input=text(FakeLive()), capture_output=True, check=False)
    assert (done.returncode, done.stderr.decode(), done.stdout.decode()) == (0, "", "")
