"""``upgrade --dry-run``: changes, copied bytes and downtime in six lines."""

from __future__ import annotations

import pytest

from sparkcluster.cli import common
from sparkcluster.cli.main import guarded
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet

ARGS = {"max-model-len": 131072, "block-size": 32, "max-num-seqs": 8, "async-scheduling": True}


@pytest.fixture
def dry_run(world, monkeypatch, capsys):
    """``dry_run(playbook)``: output while a model serves that took 5 s to start, with ``playbook`` to be served."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(playbook, *, weights=True):
        old = world(playbook={"args": {"max-model-len": 1024}}).staged()
        plan = old.plan(3)
        old.run(plan).record(plan, 3, start_s=5.0)
        new = world(playbook=playbook)
        hosts = {}
        for name, facts in old.facts.items():
            said = facts.model_dump(mode="json")
            said["weights"] = said["weights"] if weights else None
            hosts[name] = FakeHost(name).program("probe", said)
        monkeypatch.setattr(common, "load_spec", lambda _: new.spec)
        monkeypatch.setattr(common, "fleet_of", lambda *_: Fleet(hosts))
        guarded(["upgrade", "mine.yaml", "--dry-run"])
        out, err = capsys.readouterr()
        return out.splitlines(), err

    return run


def test_a_model_without_a_previous_start_uses_its_recorded_size_and_no_duration_of_another(dry_run):
    out, err = dry_run(
        {
            "name": "oss",
            "model": {"id": "openai/gpt-oss-120b"},
            "args": ARGS,
        },
        weights=False,
    )
    assert out == [
        "release 3 serves Qwen/Qwen3-8B; this would serve openai/gpt-oss-120b",
        "  model    Qwen/Qwen3-8B → openai/gpt-oss-120b",
        "  settings max-model-len 1,024 → 131,072; 3 more: -v",
        "  copy     weights (65.3 GB) from huggingface.co to 2 Sparks (33 s)",
        "  downtime unknown: last started with another model or image; at most 30 min",
    ]
    assert "next: sparkcluster upgrade mine.yaml" in err


def test_the_estimated_duration_is_that_of_the_models_last_start(dry_run):
    out, _ = dry_run({"args": {"max-model-len": 2048}})
    assert out == [
        "release 3 serves Qwen/Qwen3-8B; this would restart it",
        "  settings max-model-len 1,024 → 2,048",
        "  copy     nothing is missing",
        "  downtime about 5 s, like the last start, plus the time of requests in flight",
    ]
