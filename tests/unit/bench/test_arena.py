"""The files of a submission to Spark Arena."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest
import yaml

from sparkcluster.bench import arena, record
from sparkcluster.bench.profiles import TABLES
from sparkcluster.spec.playbook import Playbook
from tests.unit.bench import sample

PLAYBOOK = Playbook.model_validate(
    {"name": "gpt-oss-120b", "model": {"id": "a/b"}, "image": "x:y", "env": {"A": "1"}, "nodes": {"min": 1, "max": 8}}
)


def run(**changed):
    """All 28 cells, with one pass each."""
    cells = [
        dataclasses.replace(sample.sweep().cells[0], depth=depth, concurrency=at_once, phase=phase)
        for _, _, depth, at_once, caching in TABLES["cells"]["arena"]
        for phase in (["context"] if caching else []) + ["prompt"]
    ]
    return sample.sweep(**{"profile": "arena", "cells": cells, **changed})


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    record.directory().mkdir(parents=True)
    (record.directory() / "atlas-7.csv").write_text("model,test_name\n")
    return record.directory() / "atlas-7-arena"


def test_three_files_are_written_in_sparkruns_format_and_name_their_creator(folder):
    assert str(folder) in arena.write(run(), PLAYBOOK)
    names = ("recipe.yaml", "benchmark.csv", "metadata.json")
    recipe, table, metadata = ((folder / name).read_text() for name in names)
    assert yaml.safe_load(recipe)["env"] == {"A": "1"}
    assert yaml.safe_load(recipe)["defaults"] == {"tensor_parallel": 2, **run().args}
    assert table == "model,test_name\n"
    found = json.loads(metadata)
    assert set(found) == {"recipe", "timing", "cluster", "benchmark", "model", "runtime_info"}
    assert set(found["recipe"]) == {
        *("name", "qualified_name", "type", "model", "hf_model", "raw_container", "container", "container_pinned"),
        *("runtime", "runtime_full", "registry", "registry_git", "hash"),
    }
    assert found["recipe"]["type"] == "sparkcluster"
    assert found["recipe"]["container"] == run().versions["digest"]
    assert found["recipe"]["hash"] == hashlib.sha256(recipe.encode()).hexdigest()
    assert found["timing"]["duration"] == run().cells[-1].ended_s
    assert (found["cluster"]["node_count"], found["cluster"]["tensor_parallel"]) == (2, 2)


@pytest.mark.parametrize("cells", [run().cells[1:], [dataclasses.replace(run().cells[0], marks=["miscounted"])] * 52])
def test_nothing_is_written_unless_every_cell_is_valid(cells, folder):
    assert "needs all 28 cells" in arena.write(run(cells=cells), PLAYBOOK)
    assert not folder.exists()
