"""The lease of staging: two stagings exclude each other, a staging and a start, a stop or a look do not. Stub engine."""

from __future__ import annotations

import re

import pytest

FILE = "/root/models/tiny/merges.txt"


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab("sparks: [{name: full}, {name: bare, model: absent}]\n")


@pytest.mark.full
def test_a_staging_excludes_a_staging_and_neither_down_nor_status(lab, cli, ranks):
    full = lab.spark("full")
    full.run(["sh", "-c", f"head -c 24000000 /dev/urandom > {FILE}"])
    lab.fault("full", "slow-link", "8mbit")  # 24 s
    stage = cli.start("stage", lab.inventory, "weights", "--json")
    stage.wait_for("MB from full")
    second = cli("stage", lab.inventory, "weights", "--json")
    assert (second.code, second.error["kind"]) == (3, "LeaseHeld")
    assert re.search(rf"\(pid {stage.pid}\) is running stage on ", second.error["message"])
    status = cli("status", lab.inventory, "--json")
    assert (status.json["lease"], status.json["staging"]["operation"]) == (None, "stage")
    assert f"(pid {stage.pid})" in status.json["staging"]["operator"]
    up = cli("up", lab.inventory, "--json")
    assert (up.code, up.error["kind"]) == (3, "LeaseHeld"), "it lacks what is being staged"
    assert not any(ranks(lab).values())
    cli("down", lab.inventory).ok()
    stage.wait(120).ok()
    full.run(["rm", FILE])
    assert cli("up", lab.inventory, "--json").ok().json["state"] == "serving"
    assert cli("stage", lab.inventory, "weights", "--json").ok().json["copied"] == []
