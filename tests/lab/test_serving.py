"""``up`` on a cluster that serves: what answers stays, what is dead is replaced, and the rest is the user's to say."""

from __future__ import annotations

import pytest

CONTROL = "/tmp/stub-control"
SERVES = {"env": {"STUB_CONTROL": CONTROL}, "verify": {"timeout_s": 8, "pause_s": 1}}


def ail(spark, *faults):
    """Put faults of the stub on a Spark's container, in place of those before."""
    words = " ".join(faults)
    spark.run(["sh", "-c", f"docker exec $(docker ps -q) sh -c 'printf \"%s\\n\" {words} > {CONTROL}'"])


def test_garbage_is_refused_and_replaced_on_demand(lab, cli, variant, ranks):
    path = variant(lab, playbook=SERVES)
    cli("up", path).ok()
    before = ranks(lab)
    ail(lab.sparks[0], "garbage=repeat")
    refused = cli("up", path, "--json")
    assert (refused.code, refused.error["kind"]) == (1, "NotServing")
    assert "garbage" in refused.error["message"]
    assert "--replace" in refused.error["hint"]
    assert ranks(lab) == before
    replaced = cli("up", path, "--replace", "--json").ok().json
    assert (replaced["changed"], replaced["release"]) == (True, 2)
    assert cli("up", path, "--replace", "--json").ok().json["changed"] is False

    differences = cli("releases", path, "1", "2", "--json").ok().json["differences"]
    assert not [line for line in differences if "vllm" in line]
    assert any(line.startswith("default: speed when verified: ") for line in differences)


def test_an_edited_verify_and_another_gid_index_are_told_and_stop_nothing(lab, cli, variant, ranks):
    cli("up", variant(lab, playbook=SERVES)).ok()
    before = ranks(lab)
    edited = variant(lab, playbook={**SERVES, "verify": {**SERVES["verify"], "expect": "never said"}})
    lab.fault("right", "gid-shift")
    done = cli("up", edited).ok()
    assert "already up, nothing changed" in done.out
    assert "verify in the playbook was edited since release 1 was started" in done.err
    assert "GID index of" in done.err
    assert "--replace" in done.err
    assert ranks(lab) == before


def test_a_model_that_answers_without_a_record_is_not_removed_for_another_playbook(lab, cli, variant, ranks):
    """As an ``up`` leaves it that was killed between the answer and the record."""
    cli("up", variant(lab, playbook=SERVES)).ok()
    before = ranks(lab)
    for spark in lab.sparks:
        spark.run(["sh", "-c", "rm -r /root/.local/state/sparkcluster/clusters/*/releases"])
    edited = variant(lab, playbook={**SERVES, "env": {**SERVES["env"], "EDITED": "1"}})
    refused = cli("up", edited, "--json")
    assert (refused.code, refused.error["difference"]) == (1, ["default runs a plan that no release recorded"])
    assert ranks(lab) == before
    lab.sparks[0].run(["sh", "-c", "docker kill $(docker ps -q)"])
    cli("up", edited).ok()


@pytest.mark.full
def test_a_rotated_key_is_offered(lab, cli, variant, ranks):
    path = variant(lab, playbook=SERVES, api={"key": {"env": "THE_KEY"}})
    cli("up", path, env={"THE_KEY": "kEy-first-value"}).ok()
    before = ranks(lab)
    offered = cli("up", path, "--json", env={"THE_KEY": "kEy-second-value"})
    assert (offered.code, offered.error["difference"]) == (1, ["default: VLLM_API_KEY has a new value"])
    assert ranks(lab) == before
    cli("up", path, "--replace", env={"THE_KEY": "kEy-second-value"}).ok()
    assert cli("up", path, "--json", env={"THE_KEY": "kEy-second-value"}).ok().json["changed"] is False


@pytest.mark.full
def test_a_hung_engine_is_replaced_once_no_prefill_can_take_as_long(lab, cli, variant, ranks):
    path = variant(lab, playbook=SERVES)
    cli("up", path).ok()
    before = ranks(lab)
    ail(lab.sparks[1], "hang-serve")
    status = cli("status", path, "--json")
    assert (status.code, status.json["state"]) == (1, "degraded")
    assert "long prompt" in status.json["groups"][0]["why"]
    up = cli("up", path, timeout=180).ok()
    assert "no counter of the engine has moved for 6" in up.err
    assert ranks(lab) != before
    assert cli("status", path, "--json").ok().json["state"] == "serving"
