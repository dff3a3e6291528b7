"""Keys of playbook and inventory with effects on real nodes: a user, a variant, a build, commands after readiness."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml


def owners(spark) -> set[str]:
    """User IDs of the processes in a node's rank."""
    name = spark.run(["docker", "ps", "--format", "{{.Names}}"]).stdout.split()[0]
    return set(spark.run(["docker", "exec", name, "sh", "-c", "stat -c %u /proc/[0-9]*"]).stdout.split())


def test_a_user_a_variant_and_after_ready_commands_that_reach_a_ready_endpoint(lab, cli, variant, tmp_path):
    told = tmp_path / "told"
    command = f'python3 -c \'import os, urllib.request as r; r.urlopen(os.environ["SPARKCLUSTER_ENDPOINT"] + "/models"); open("{told}", "a").write(os.environ["SPARKCLUSTER_RELEASE"] + "\\n")\''
    playbook = {
        "container": {"cap_add": None, "user": "2000:2000"},
        "served_name": None,
        "variants": {"1": {"served_name": "alone"}, "2": {"served_name": "together"}},
    }
    inventory = variant(lab, playbook=playbook, after_ready=[command, ["false"]])
    up = cli("up", inventory, "--json").ok().json
    assert up["model"] == "together"
    assert all("2000" in owners(spark) for spark in lab.sparks)
    assert told.read_text() == "1\n"
    assert [each["problem"] for each in up["after_ready"]] == [None, "exited with code 1"]
    assert cli("up", inventory, "--json").ok().json["after_ready"] == []
    assert told.read_text() == "1\n"


@pytest.mark.full
def test_an_image_is_built_on_one_node_and_runs_on_all(lab, cli, variant):
    inventory = variant(lab, playbook={"build": {"context": "./mod"}}, permit={"builds": ["./mod"]})
    mod = Path(yaml.safe_load(inventory.read_text())["playbook"]).parent / "mod"
    mod.mkdir()
    (mod / "Dockerfile").write_text("ARG BASE\nFROM $BASE\nCOPY mark.txt /mark.txt\n")
    (mod / "mark.txt").write_text("built")
    assert "is up" in cli("up", inventory, "--yes").ok().out
    plan = json.loads(cli("plan", inventory, "--json").out)
    assert plan["image"].startswith("sparkcluster-build:")
    for spark in lab.sparks:
        name = spark.run(["docker", "ps", "--format", "{{.Names}}"]).stdout.split()[0]
        assert spark.run(["docker", "exec", name, "cat", "/mark.txt"]).stdout == "built"

    (mod / "Dockerfile").write_text("ARG BASE\nFROM $BASE\nCOPY missing.txt /\n")
    failed = cli("upgrade", inventory, "--yes")
    assert failed.code == 1
    assert "building ./mod on " in failed.err
    assert cli("status", inventory, "--json").ok().json["release"] == 1
