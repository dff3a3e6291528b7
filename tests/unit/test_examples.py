"""Examples of docs/commands.md whose commands contact no node; tests/lab/test_examples.py has the others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import examples

LINES = {
    "checks": "sparkcluster checks NET-006",
    "completion": "sparkcluster completion bash | grep 'complete -o'",
    "fit": "sparkcluster fit qwen3.6-35b-a3b-nvfp4 --context 262144",
    "import": "echo docker run --gpus all vllm/vllm-openai:v0.20.0 --model openai/gpt-oss-20b |\n"
    "    sparkcluster import - -o my-model.yaml",
    "lint": "sparkcluster lint mine.yaml --set args.enforce-eager=true",
    "playbooks": "sparkcluster playbooks",
}


@pytest.mark.parametrize(("name", "line"), LINES.items(), ids=list(LINES))
def test_an_example_matches_the_output_of_its_command(name: str, line: str, tmp_path: Path) -> None:
    place = examples.Place(tmp_path / "home")
    shutil.copy(examples.ROOT / "inventory/two-spark.yaml", place.home / "mine.yaml")
    code, written = place.run(line)
    assert code == 0, written
    assert examples.difference(name, line, place.shown(written), compared=str) == ""
