"""The memory of several models as known before a node is contacted."""

from __future__ import annotations

import pytest
import yaml

from sparkcluster.errors import SpecError
from sparkcluster.fit.budget import PROCESS_BYTES
from sparkcluster.inspect.budget import budget, by_size, require_room
from sparkcluster.spec.load import load_all

ALONE = {"args.gpu-memory-utilization": 0.82}
UNKNOWN = {"name": "mine", "model": {"id": "nobody/knows"}, "image": "vllm/vllm-openai:v0.23.0"}


@pytest.fixture
def specs(tmp_path, monkeypatch):
    """``specs(*entries)``: specs of an inventory with these models on one Spark; ``mine.yaml`` has an unknown model."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = tmp_path / "sparks.yaml"

    def do(*entries, playbook=UNKNOWN):
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(playbook))
        node = {"host": "192.168.86.11", "name": "spark-1"}
        written = {"cluster": "atlas", "nodes": [node], "gateway": {}, "models": list(entries)}
        path.write_text(yaml.safe_dump(written))
        return load_all(path)

    return do


def entry(playbook, **more):
    return {"playbook": playbook, **more}


def test_models_over_budget_are_refused_at_their_line_with_the_numbers_and_the_setting_to_change(specs):
    with pytest.raises(SpecError) as caught:
        require_room(specs(entry("gpt-oss-120b", set=ALONE), entry("qwen3.6-27b-nvfp4", name="chat", set=ALONE)))
    (problem,) = caught.value.problems
    assert (problem.file.endswith("sparks.yaml"), problem.line > 0, problem.path) == (True, True, "models")
    assert problem.message.startswith("spark-1: gpt-oss-120b 113.1 GB, chat 113.1 GB, the system's")
    assert "args.max-num-seqs" in problem.hint
    small = specs(entry("gpt-oss-20b"), entry("qwen3.5-4b-dflash"))
    assert require_room(small).fits is True


def test_a_default_that_takes_all_memory_is_not_used_with_a_second_model(specs):
    """vLLM's 0.92: like ``auto``, which the plan computes too."""
    default, auto = (
        budget(specs(entry("gpt-oss-20b"), entry("mine.yaml"), playbook=written)).sparks["spark-1"][1].bytes
        for args in ({}, {"gpu-memory-utilization": "auto"})
        for written in [{**UNKNOWN, "model": {"id": "Qwen/Qwen3-8B"}, "args": args}]
    )
    assert 0 < default == auto < 60e9


def test_an_unknown_model_counts_with_the_limit_of_its_engine_or_is_unknown(specs):
    beside = entry("gpt-oss-20b")
    found = budget(specs(beside, entry("mine.yaml", set={"args.gpu-memory-utilization": 0.3})))
    mine = found.sparks["spark-1"][1]
    assert (mine.kind, found.fits) == ("at most", None)
    assert mine.bytes == pytest.approx(0.3 * found.machine.visible_bytes + 5.6 * 2**30, rel=0.001)
    found = budget(specs(beside, entry("mine.yaml")))
    assert (found.sparks["spark-1"][1].kind, found.fits, found.problems) == ("unknown", None, [])
    assert "nobody/knows" in found.doubts[0]


def test_logged_weights_are_used_and_a_share_is_unchanged(specs):
    logged = {"gpt-oss-20b": {"nodes": 1, "load_gib": 20.0}, "other": None}
    for settings, same in ((ALONE, True), ({}, False)):
        both = specs(entry("gpt-oss-20b", set=settings), entry("qwen3.5-4b-dflash", name="other"))
        predicted, measured = (budget(both, measured=each).sparks["spark-1"][0] for each in (None, logged))
        assert (measured.kind, measured.weights_bytes) == ("measured", 20 * 2**30)
        assert (predicted.bytes == measured.bytes) is same
    elsewhere = {"gpt-oss-20b": {"nodes": 2, "load_gib": 20.0}}
    assert budget(both, measured=elsewhere).sparks["spark-1"][0] == predicted


def test_the_measured_memory_of_a_start_is_used_as_its_peak_and_for_its_processes(specs):
    logged = {"nodes": 1, "load_gib": 14.0, "kv_gib": 4.0, "graphs_gib": 0.5, "used_gib": 22.0, "peak_gib": 30.0}
    both = specs(entry("gpt-oss-20b"), entry("qwen3.5-4b-dflash", name="other"))
    found = budget(both, measured={"gpt-oss-20b": logged}).sparks["spark-1"][0]
    assert (found.host_bytes, found.start_peak_bytes) == (int(3.5 * 2**30), 8 * 2**30)
    del logged["used_gib"]
    found = budget(both, measured={"gpt-oss-20b": logged}).sparks["spark-1"][0]
    assert (found.host_bytes, found.peak_bytes) == (PROCESS_BYTES, None)


def test_the_largest_model_starts_first_preceded_by_unknown_ones(specs):
    entries = [entry("gpt-oss-20b"), entry("gpt-oss-120b"), entry("mine.yaml")]
    assert [spec.model for spec in by_size(specs(*entries))] == ["mine", "gpt-oss-120b", "gpt-oss-20b"]
    entries[1]["on_demand"] = {}
    assert [spec.model for spec in by_size(specs(*entries))] == ["mine", "gpt-oss-20b", "gpt-oss-120b"]
