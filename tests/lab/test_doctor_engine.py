"""`doctor` on virtual Sparks with the real engine: what a real vLLM and a real Ray say of themselves, well and ill."""

from __future__ import annotations

import time

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.full]


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab(2, engine="vllm")


def problems(document):
    return {(finding["code"], finding["node"]) for finding in document["findings"] if finding["severity"] != "info"}


def test_a_real_engine_well_frozen_and_without_its_worker(lab, cli):
    head, worker = lab.sparks
    cli("up", lab.inventory, timeout=300).ok()
    well = cli("doctor", lab.inventory, "--json", timeout=60).ok().json
    assert problems(well) == set()
    node = well["running"]["nodes"][head.name]
    assert node["ray"] == {"192.168.177.11": True, "192.168.177.12": True}
    before, after = node["counters"]
    assert after["generated"] > before["generated"]
    assert well["running"]["replies"]["default"]["text"]

    # Its API server goes on and says that all is well, and its gauges stand where they stood.
    lab.fault(head.name, "kill-engine")
    frozen = cli("doctor", lab.inventory, "--json", "--timeout", "14", timeout=60)
    assert frozen.code == 1
    assert problems(frozen.json) == {("RUN-003", head.name)}
    assert frozen.json["running"]["nodes"][head.name]["health"] == 200
    assert frozen.seconds < 20

    lab.fault(worker.name, "kill-worker")
    time.sleep(1)
    killed = cli("doctor", lab.inventory, "--json", "--timeout", "14", timeout=60)
    assert problems(killed.json) == {("RUN-005", worker.name)}
    assert "exited (137)" in next(
        finding["seen"] for finding in killed.json["findings"] if finding["code"] == "RUN-005"
    )
