"""A second engine is one directory: Canned serves on a virtual Spark without any other change."""

from __future__ import annotations

from pathlib import Path

import pytest

ENGINES = Path(__file__).parents[1] / "data" / "engines"
PROGRAM = f"""
import sys
import sparkcluster.engines
from sparkcluster.cli.main import console
sparkcluster.engines.__path__.append({str(ENGINES)!r})
sys.exit(console())
"""


@pytest.fixture
def canned(cli):
    """The command line with one additional directory in ``engines/``."""
    cli.program = ("-c", PROGRAM)
    return cli


@pytest.fixture
def inventory(lab, variant):
    nodes = [{"name": "left", "host": lab.sparks[0].host}]
    return variant(lab, nodes=nodes, api={"key": {"env": "LAB_KEY"}}, playbook={"engine": "canned", "args": None})


@pytest.mark.full
def test_another_engine_is_planned_started_verified_watched_and_stopped(canned, inventory, ranks, lab, monkeypatch):
    monkeypatch.setenv("LAB_KEY", "s3cret")
    canned("preflight", inventory, "--yes")  # only the engine differs from lab up's inventory
    plan = canned("plan", inventory, "--json").ok().json
    assert plan["nodes"]["left"]["env"].keys().isdisjoint({"VLLM_HOST_IP", "VLLM_MARLIN_USE_ATOMIC_ADD"})
    assert plan["nodes"]["left"]["secrets"] == ["CANNED_KEY"]

    assert "release 1, " in canned("up", inventory).ok().out
    assert canned("up", inventory, "--json").ok().json["changed"] is False

    status = canned("status", inventory, "--json").ok().json
    assert (status["state"], status["groups"][0]["ready"]) == ("serving", True)
    assert canned("ask", inventory, "What is 12 * 17?").ok().out.strip() == "12 * 17 is 204."
    assert "canned is ready" in canned("logs", inventory, "left").ok().out
    findings = canned("doctor", inventory, "--json").ok().json["findings"]
    assert not [found for found in findings if found["code"].startswith("RUN-")], findings

    assert "1 rank removed" in canned("down", inventory).ok().out
    assert ranks(lab) == {"left": [], "right": []}
