"""Output about runs: within 80 columns, in a pipe, and as a file."""

from __future__ import annotations

import dataclasses
import json

import pytest

from sparkcluster.bench import judge, record
from sparkcluster.cli import bench_view
from sparkcluster.cli.main import guarded
from tests.unit.bench import sample


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def printed(capsys):
    def run(view, *what):
        view(*what)
        return capsys.readouterr()

    return run


def test_a_run_fits_into_80_columns_of_a_pipe_and_ends_with_the_next_command(printed):
    shown = printed(bench_view.show, sample.sweep(), None)
    lines = shown.out.splitlines()
    assert max(map(len, lines)) <= 80
    (disturbed,) = [line for line in lines if "disturbed" in line]
    assert "4,096" in disturbed
    (slowest,), (quickest,) = ([line for line in lines if speed in line] for speed in ("40.9", "283.9"))
    assert 0 < slowest.count("█") < quickest.count("█")
    assert "not comparable" in shown.out
    assert "knee" in shown.out
    assert "3 runs, through the engine, 2026-09-21 14:13 UTC" in shown.out
    assert "ended early" not in shown.out


def test_a_run_that_ended_early_is_marked(printed):
    shown = printed(
        bench_view.show, sample.sweep(ended="failed: spark-2 is gone", skipped=["depth 65,536: too long"]), None
    )
    assert "failed: spark-2 is gone" in shown.out
    assert "too long" in shown.out
    empty = printed(bench_view.show, sample.sweep(cells=[], ended="interrupted"), None).out
    assert "ended early: interrupted" in empty


def test_output_of_an_engine_is_escaped_on_the_terminal(printed):
    assert "\x1b" not in printed(bench_view.show, sample.sweep(model="a\x1b[2Jb", nodes=["x\x1b[2J"]), None).out


def test_runs_are_listed_one_per_line(printed):
    found = printed(bench_view.listed, [sample.sweep(), sample.sweep(id="atlas-8", ended="failed: x", cells=[])]).out
    assert max(map(len, found.splitlines())) <= 80
    assert len(found.splitlines()) == 3
    assert "51.8" in found
    assert "sparkcluster bench INVENTORY" in printed(bench_view.listed, []).out


def test_a_comparison_shows_each_verdict(printed):
    a, b, again = sample.pair()
    shown = printed(bench_view.compared, judge.compare([a, again], [b])).out
    assert shown.count(" worse") == 4 + 2  # decode, and per user
    assert max(map(len, shown.splitlines())) <= 80


def test_a_page_is_written_with_the_compared_runs(printed, tmp_path):
    runs = [dataclasses.replace(run, cells=run.cells[:1], samples={}) for run in sample.pair()]
    for run in runs:
        folder = record.directory()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{run.id}.json").write_text(json.dumps(run.as_json()))
    printed(bench_view.page, runs[0], tmp_path / "a.html")
    assert "Decode: A against B" in (tmp_path / "a.html").read_text()
    (record.directory() / "atlas-9.json").unlink()
    printed(bench_view.page, runs[0], tmp_path / "a.html")
    assert "A against B" not in (tmp_path / "a.html").read_text()


def test_the_runs_of_a_playbook_are_shown_next_to_its_figures(capsys):
    folder = record.directory()
    folder.mkdir(parents=True)
    (folder / "atlas-7.json").write_text(json.dumps(sample.sweep().as_json()))
    other = dataclasses.replace(sample.sweep(), id="atlas-8", playbook="other")
    (folder / "atlas-8.json").write_text(json.dumps(other.as_json()))
    assert guarded(["playbooks", "gpt-oss-120b", "--measured"]) == 0
    shown = capsys.readouterr().out
    assert "figure " in shown
    assert "atlas-7" in shown
    assert "atlas-8" not in shown
    assert guarded(["playbooks", "gpt-oss-120b"]) == 0
    assert "atlas-7" not in capsys.readouterr().out
    assert guarded(["playbooks", "--measured"]) == 2
