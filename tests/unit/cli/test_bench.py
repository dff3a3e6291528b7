"""Arguments of ``bench``: a run on the running release, or stored runs."""

from __future__ import annotations

import json

import pytest

from sparkcluster.bench import measure, record
from sparkcluster.bench.measure import Job
from sparkcluster.bench.record import Measured, Record
from sparkcluster.cli.main import guarded


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Two stored runs, in a directory without an inventory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPARKCLUSTER_INVENTORY", raising=False)
    for speed in (40.0, 80.0):
        cell = Measured(2048, 128, 0, 1, figures={"prefill": [900.0] * 3, "decode": [speed] * 3, "ttft_s": [1.0] * 3})
        fixed = {"model": "openai/gpt-oss-20b", "playbook": "gpt-oss-20b", "profile": "quick", "kind": "chat"}
        record.save(Record(
            cluster="atlas", runs=3, group="default", nodes=["alpha"], cells=[cell], at=speed, **fixed,
            ended="complete", client={"path": "engine"},
        ))  # fmt: skip
    return tmp_path


def test_runs_are_listed_shown_and_compared_without_an_inventory(kept, capsys):
    assert guarded(["bench", "list", "--json"]) == 0
    assert [run["id"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["atlas-2", "atlas-1"]
    assert guarded(["bench", "show", "atlas-2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == record.load("atlas-2").as_json()
    assert guarded(["bench", "compare", "atlas-1", "atlas-2", "--json"]) == 0
    found = {each["metric"]: each["verdict"] for each in json.loads(capsys.readouterr().out)["cells"]}
    assert (found["decode"], found["prefill"]) == ("better", "noise")
    for words in (["list"], ["show", "atlas-1"], ["compare", "atlas-1", "atlas-2"]):
        assert guarded(["bench", *words]) == 0
    assert "next: sparkcluster bench show atlas-2 --html" in capsys.readouterr().err
    assert guarded(["bench", "show", "atlas-1", "--html"]) == 0
    assert "next:" not in capsys.readouterr().err
    assert (kept / "atlas-1.html").is_file()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["show"], "sparkcluster bench show RUN"),
        (["compare", "atlas-1"], "sparkcluster bench compare A B"),
        (["list", "atlas-1"], "sparkcluster bench list"),
        (["show", "atlas-3"], "did you mean atlas-"),
        (["lst"], "list, show RUN or compare A B, not lst"),
        (["list", "--ab", "args.max-num-seqs=4"], "bench list does not measure"),
    ],
)
def test_a_profile_that_does_not_fit_is_refused_with_the_command_to_type(kept, capsys, words, hint):
    assert guarded(["bench", *words]) == 2
    assert hint in capsys.readouterr().err


def test_flags_define_the_job_and_a_sweep_ends_after_half_an_hour(kept, monkeypatch, capsys):
    jobs = []

    def fake(_fleet, _spec, job, _report):
        jobs.append(job)
        return record.load("atlas-1")

    monkeypatch.setattr(measure, "measure", fake)
    inventory = kept / "sparkcluster.yaml"
    inventory.write_text("cluster: atlas\nnodes: [{host: local, connection: local, name: a}]\nplaybook: gpt-oss-20b\n")
    assert guarded(["bench", "--profile", "sweep", "--runs", "5", "--json"]) == 0
    assert guarded(["bench", str(inventory), "--group", "west", "--minutes", "3", "--yes", "--json-lines"]) == 0
    assert jobs == [Job("sweep", 5, 30.0), Job("quick", 3, 3.0, "west", "engine", yes=True)]
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["id"] == "atlas-1"


def test_with_several_models_one_must_be_named(tmp_path, capsys):
    inventory = tmp_path / "home.yaml"
    inventory.write_text(
        "cluster: home\nnodes: [{host: 10.0.0.1, name: a}, {host: 10.0.0.2, name: b}]\n"
        "models: [{playbook: gpt-oss-120b, nodes: [a]}, {playbook: gpt-oss-20b, nodes: [b]}]\n"
    )
    assert guarded(["bench", str(inventory)]) == 2
    assert "bench is for one model" in capsys.readouterr().err
