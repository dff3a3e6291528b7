"""A model for embeddings is verified, watched and refused by the requests that its clients send."""

from __future__ import annotations

import pytest

from tests.lab.test_serving import SERVES, ail


@pytest.fixture
def inventory(lab, variant):
    nodes = [{"name": "left", "host": lab.sparks[0].host}]
    return variant(lab, nodes=nodes, playbook={**SERVES, "args": {"runner": "pooling"}, "verify": {"expect": None}})


def test_a_model_for_embeddings_is_verified_and_judged_as_one(cli, inventory, lab, ranks):
    cli("up", inventory).ok()
    status = cli("status", inventory, "--json").ok().json
    assert status["state"] == "serving"
    refused = cli("ask", inventory, "What is 12 * 17?", "--json")
    assert (refused.code, "serves a model for embeddings" in refused.error["message"]) == (2, True)
    findings = cli("doctor", inventory, "--json").json["findings"]
    assert not [found for found in findings if found["code"].startswith("RUN-") and found["severity"] != "info"], (
        findings
    )

    ail(lab.sparks[0], "garbage")
    broken = cli("up", inventory, "--json")
    assert (broken.code, broken.error["kind"]) == (1, "NotServing")
    assert "vectors of 64 numbers: 0.000 for a text that answers the question" in broken.error["message"]
    cli("down", inventory).ok()
    assert ranks(lab)["left"] == []
