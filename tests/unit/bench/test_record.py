"""Runs on this machine: their names, and loading them."""

from __future__ import annotations

import threading

import pytest

from sparkcluster.bench import record
from sparkcluster.bench.record import Measured, Record
from sparkcluster.errors import UsageError


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def run(cluster="atlas", **more):
    fixed = {"model": "Qwen/Qwen3-8B", "playbook": "qwen", "profile": "quick", "runs": 3, "kind": "chat"}
    return Record(cluster=cluster, **fixed, group="main", nodes=["alpha"], **more)


def test_a_run_is_loaded_unchanged_with_the_files_of_llama_benchy(tmp_path):
    (tmp_path / "csv").write_text("model,test_name\n")
    (tmp_path / "llama-benchy.json").write_text("{}")
    figures = {"decode": [41.5], "prompt_tokens": [2048]}
    cell = Measured(2048, 128, 0, 1, figures=figures, engine={"hit_rate": None}, marks=["cached"])
    samples = {"alpha": {"at_s": [1.0], "power_w": [None], "power_source": ""}}
    kept = run(cells=[cell], samples=samples, args={"max-model-len": 4096})
    record.save(kept, tmp_path.glob("*[nv]"))
    assert record.load("atlas-1") == kept
    assert (record.directory() / "atlas-1.csv").read_text() == "model,test_name\n"
    assert (record.directory() / "atlas-1.llama-benchy.json").is_file()
    kept.ended = "complete"
    record.save(kept)
    assert [each.ended for each in record.kept()[0]] == ["complete"]


def test_concurrent_runs_get_separate_names_and_are_numbered_by_cluster():
    runs = [run() for _ in range(8)]
    threads = [threading.Thread(target=record.save, args=(each,)) for each in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert {each.id for each in runs} == {f"atlas-{number}" for number in range(1, 9)}
    other = run("atlas-8")
    record.save(other)
    assert other.id == "atlas-8-1"


def test_an_unreadable_run_is_a_note_in_the_list_and_an_error_by_name():
    for at in (1.0, 2.0):
        record.save(run(at=at))
    (record.directory() / "atlas-7.json").write_text('{"version": 1')
    old = (record.directory() / "atlas-1.json").read_text().replace('"version": 2', '"version": 1')
    (record.directory() / "atlas-8.json").write_text(old)
    found, notes = record.kept()
    assert [each.id for each in found] == ["atlas-2", "atlas-1"]
    assert len(notes) == 2
    for name in ("atlas-7", "atlas-8"):
        with pytest.raises(UsageError, match=rf"{name}\.json cannot be read"):
            record.load(name)
    assert [each.id for each in record.kept(["atlas-1", "atlas-9"])[0]] == ["atlas-1"]


@pytest.mark.parametrize("name", ["atlas-3", "../atlas-1", "/etc/passwd", "atlas-1.llama-benchy", ""])
def test_an_unknown_run_name_opens_no_file(name):
    record.save(run())
    (record.directory() / "atlas-1.llama-benchy.json").touch()
    with pytest.raises(UsageError, match="there is no run"):
        record.load(name)
