"""``stage`` alone, on two Sparks of which one has nothing: real images, real files, and nothing started."""

from __future__ import annotations

import re

import pytest


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab("sparks: [{name: full}, {name: bare, image: absent, model: absent}]\n")


def test_one_spark_copies_to_the_other_and_nothing_starts(lab, cli, ranks):
    dry = cli("stage", lab.inventory, "--dry-run").ok()
    assert re.search(r"image  \S+: bare missing, would come from full", dry.out)
    assert re.search(r"weights  \S+: bare missing, would come from full", dry.out)
    assert cli("stage", lab.inventory, "--dry-run").ok().out == dry.out

    done = cli("stage", lab.inventory, "weights", "--json").ok().json
    assert [(copy["what"], copy["node"], copy["source"]) for copy in done["copied"]] == [("weights", "bare", "full")]
    assert done["copied"][0]["bytes"] > 0
    assert done["staging"][0]["missing"] == {"bare": "missing"}

    staged = cli("stage", lab.inventory).ok()
    assert re.search(r"image  \S+: bare from full, \d+\.\d\d GB in \d+\.\d s, \d+\.\d\d GB/s", staged.out)
    assert re.search(r"weights  \S+: nothing is missing", staged.out)
    assert "bare: image" in staged.err

    again = cli("stage", lab.inventory, "--verify").ok()
    assert re.search(r"image  \S+: nothing is missing", again.out)
    assert not any(ranks(lab).values())


def test_an_unreachable_spark_stops_staging(lab, cli):
    lab.fault("bare", "ssh-hang")
    failed = cli("stage", lab.inventory, "--json", timeout=120)
    assert failed.code == 1
    assert failed.error["kind"] == "FoundErrors"
    assert failed.error["node"] == "bare"
