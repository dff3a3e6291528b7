"""An embedding model is verified and watched with the requests of its clients, and refuses others."""

from __future__ import annotations

import pytest

from tests.lab.test_serving import SERVES, set_stub_faults


@pytest.fixture
def inventory(lab, variant):
    nodes = [{"name": "left", "host": lab.sparks[0].host}]
    return variant(lab, nodes=nodes, playbook={**SERVES, "args": {"runner": "pooling"}, "verify": {"expect": None}})


def test_an_embedding_model_is_verified_and_checked_as_such(cli, inventory, lab, ranks):
    cli("up", inventory).ok()
    status = cli("status", inventory, "--json").ok().json
    assert status["state"] == "serving"
    refused = cli("ask", inventory, "What is 12 * 17?", "--json")
    assert (refused.code, "serves a model for embeddings" in refused.error["message"]) == (2, True)
    findings = cli("doctor", inventory, "--json").json["findings"]
    assert not [found for found in findings if found["code"].startswith("RUN-") and found["severity"] != "info"], (
        findings
    )

    set_stub_faults(lab.sparks[0], "garbage")
    broken = cli("up", inventory, "--json")
    assert (broken.code, broken.error["kind"]) == (1, "NotServing")
    assert "vectors of 64 numbers: 0.000 for a text that answers the question" in broken.error["message"]
    cli("down", inventory).ok()
    assert ranks(lab)["left"] == []
