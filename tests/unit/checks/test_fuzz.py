"""Whatever a probe could not read or read strangely, no check may crash: each says what it can."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkcluster import checks, topology
from sparkcluster.checks.registry import Context
from sparkcluster.errors import PlanError
from sparkcluster.facts.parse import parse

from .conftest import rails

UNREADABLE = ("os", "dgx", "driver", "cuda", "gpus", "memory", "disks", "docker", "hcas", "listeners", "image", "engine",
              "ranks", "weights", "remove_ipc", "driver_module", "kernel_log", "release", "lease")  # fmt: skip
NOTHING = {"gpus": [], "disks": [], "hcas": [], "listeners": [], "ranks": [], "image": None, "weights": None,
           "driver_module": None, "names": {}, "reached_at": None, "clock_offset_s": None}  # fmt: skip
STRANGE = {
    "listeners": [{"address": "*", "port": 8265}, {"address": "fe80::1%enp1s0f0np0", "port": 8000, "process": ""}],
    "names": {"spark.local": ["::1", "not an address", "192.168.50.7"], "": [], "x": {"unread": "SERVFAIL"}},
    "gpus": [{"name": "", "compute_capability": None, "utilization_percent": 100, "power_w": None}] * 2,
    "driver": "",
    "kernel": "",
    "reached_at": "fe80::1",
    "clock_offset_s": -1e12,
    "memory": {"total_bytes": 0, "free_bytes": 0, "available_bytes": 0, "cached_bytes": 0, "swap_total_bytes": 0,
               "swap_free_bytes": 0, "cma_total_bytes": 0},
    "docker": {"version": "", "storage_driver": "", "root_dir": "", "runtimes": []},
    "weights": {"path": "/w", "files": [], "missing": ["a"] * 500, "truncated": ["\u202e"]},
    "disks": [{"purpose": "docker", "path": "/", "total_bytes": 0, "free_bytes": 0}],
    "uid": -1,
}  # fmt: skip


@st.composite
def spoiled(draw: st.DrawFn) -> dict[str, object]:
    """Keys to replace in a probe's document."""
    own: dict[str, object] = {key: {"unread": "it hung"} for key in draw(st.sets(st.sampled_from(UNREADABLE)))}
    own |= {key: NOTHING[key] for key in draw(st.sets(st.sampled_from(sorted(NOTHING))))}
    return own | {key: STRANGE[key] for key in draw(st.sets(st.sampled_from(sorted(STRANGE)), max_size=4))}


@pytest.mark.parametrize("runtime", ["docker", "process"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(left=spoiled(), right=spoiled(), flags=st.dictionaries(st.sampled_from(["tool-call-parser", "x y", "seed"]),
       st.sampled_from([None, True, 0.5, "a", ["b"], {"c": 1}])))  # fmt: skip
def test_no_check_crashes(runtime, left, right, flags, spark, cluster):
    hosts = {"left.local": "left.local", "right": "192.168.86.12"}
    facts = {}
    for number, (name, own) in enumerate(zip(hosts, (left, right), strict=True), 11):
        plain = spark(rails(number), management=f"192.168.86.{number}/24").model_dump(mode="json")
        facts[name] = parse(name, {**plain, **own})
    image = {} if runtime == "docker" else {"image": None}
    spec = cluster(hosts, runtime={"kind": runtime}, playbook={"args": flags, **image})
    crashed = "the check itself failed"
    assert not [finding for finding in checks.check_hosts(spec, facts) if crashed in finding.summary]
    try:
        built = topology.build(spec, facts)
    except PlanError:
        return
    findings = checks.run_stage(Context(spec, facts, built), ("written", "facts"))
    assert not [(finding.code, finding.seen) for finding in findings if crashed in finding.summary]
    json.dumps([finding.as_json() for finding in findings])
