"""The tiny model: written without torch, reproducible, and readable by any checkpoint reader."""

import hashlib
import json
from pathlib import Path

from sparkcluster.lab.engine import tiny_llama


def test_the_written_bytes_are_reproducible() -> None:
    # Greedy answers of different machines are comparable only if the weights are equal.
    weights = tiny_llama.tiny_model_files()["model.safetensors"]
    assert hashlib.sha256(weights).hexdigest() == ("6cefb2a619e376df08d81083da0da7ab31768d36cf9c698f73e2ced05db55ec1")


def test_a_second_write_changes_nothing_and_repairs_broken_files(tmp_path: Path) -> None:
    place = tiny_llama.write_tiny_model(tmp_path / "models" / "tiny")
    before = {path.name: path.stat().st_mtime_ns for path in place.iterdir()}
    assert set(before) == set(tiny_llama.tiny_model_files())
    (place / "config.json").write_text("{}")
    tiny_llama.write_tiny_model(place)
    assert json.loads((place / "config.json").read_text())["model_type"] == "llama"
    after = {path.name: path.stat().st_mtime_ns for path in place.iterdir()}
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {"config.json"}
