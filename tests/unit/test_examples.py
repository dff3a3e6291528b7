"""Examples of docs/commands.md whose commands contact no node; those of the others are in tests/lab/test_examples.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sparkcluster.cli.main import COMMANDS
from tests import examples

LINES = {
    "checks": "sparkcluster checks NET-006",
    "completion": "sparkcluster completion bash | head -2",
    "fit": "sparkcluster fit qwen3.6-35b-a3b-nvfp4 --context 262144",
    "import": "echo docker run --gpus all vllm/vllm-openai:v0.20.0 --model openai/gpt-oss-20b |\n"
    "    sparkcluster import - -o my-model.yaml",
    "lint": "sparkcluster lint mine.yaml --set args.enforce-eager=true",
    "playbooks": "sparkcluster playbooks",
}


@pytest.mark.parametrize(("name", "line"), LINES.items(), ids=list(LINES))
def test_an_example_is_what_the_command_writes(name: str, line: str, tmp_path: Path) -> None:
    place = examples.Place(tmp_path / "home")
    shutil.copy(examples.ROOT / "inventory/two-spark.yaml", place.home / "mine.yaml")
    code, written = place.run(line)
    assert code == 0, written
    assert examples.difference(name, line, place.shown(written), compared=str) == ""


def test_every_command_has_an_example() -> None:
    assert {name for name in COMMANDS if not examples.file(name).exists()} == set()


def test_two_runs_on_two_machines_are_the_same() -> None:
    first = """\
pair: serving, release 2, up 3 h 20 min, since 2026-11-26 04:10:00
spark-1   head    running  15/128 GB   sha256:0f3a9c1d2e4b
http://10.77.3.11:8000/v1  61.2 tokens/s, 1.24 GB in 0.9 s
┌─ spark-1 ─ 10.77.3.11 ───┐
(EngineCore pid=71) INFO 11-26 04:10:02 [worker.py:759] weights loaded in 0.25 seconds
"""
    second = """\
pair: serving, release 2, up 45 s, since 2027-01-02 14:10:01
spark-1  head  running  9.5/128 GB  sha256:77aa11bb22cc
http://10.77.12.11:8000/v1  7 tokens/s, 1,240 MB in 12.1 s
┌─ spark-1 ─ 10.77.12.11 ──┐
(EngineCore pid=1234) INFO 01-02 14:10:11 [worker.py:759] weights loaded in 3 seconds
"""
    assert examples.same(first) == examples.same(second)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("pair: serving, release 2", "pair: serving, release 3"),
        ("spark-1: running", "spark-2: running"),
        ("NET-006 on spark-1", "NET-007 on spark-1"),
        ("  hint: sudo ip link set a mtu 9000", "  hint: sudo ip link set a mtu 1500"),
        ("one line", "one line\n\nand more"),
    ],
)
def test_what_a_reader_would_miss_is_a_difference(before: str, after: str) -> None:
    assert examples.same(before) != examples.same(after)


def test_an_example_is_rewritten_on_demand_and_only_where_more_than_times_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "file", lambda name: tmp_path / f"{name}.txt")
    monkeypatch.delenv("UPDATE_EXAMPLES", raising=False)
    assert "+up after MEASURED" in examples.difference("up", "sparkcluster up", "up after 3 s\n")
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("UPDATE_EXAMPLES", "1")
    for seconds in (3, 4):
        assert examples.difference("up", "sparkcluster up", f"up after {seconds} s\n") == ""
    assert (tmp_path / "up.txt").read_text() == "$ sparkcluster up\nup after 3 s\n"
