"""TensorRT-LLM's stub on a virtual Spark: the life of a model, and two models behind one address."""

from __future__ import annotations

import pytest

from sparkcluster.lab.inventory import ENGINE_ARGUMENTS
from tests.lab.builds import load

BROKEN = b"#!/bin/sh\necho 'ImportError: libcudart.so.13: cannot open shared object file' >&2\nexit 1\n"
OF_VLLM = dict.fromkeys(ENGINE_ARGUMENTS)
ARGS = {"max-batch-size": 4, "max-seq-len": 1024, "extra-llm-api-options": {"print_iter_log": False}}
PLAYBOOK = {"engine": "tensorrt-llm", "args": {**OF_VLLM, **ARGS}, "env": None}


@pytest.fixture
def inventory(lab, variant):
    return variant(lab, nodes=[{"name": "left", "host": lab.sparks[0].host}], playbook=PLAYBOOK)


def options(lab):
    """The options file of the running rank on the first Spark, as seen by the engine's process."""
    spark = lab.sparks[0]
    (container,) = spark.run(["docker", "ps", "-q"]).stdout.split()
    words = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f; done; "
    words += "f=$(find / -xdev -name options.yaml 2>/dev/null); stat -c %a $f; cat $f"
    return spark.run(["docker", "exec", container, "sh", "-c", words]).stdout


def test_a_model_is_planned_started_watched_switched_rolled_back_and_stopped(lab, cli, inventory, ranks):
    cli("preflight", inventory, "--yes")
    plan = cli("plan", inventory, "--json").json
    assert not [found for found in plan["findings"] if found["severity"] == "error"], plan["findings"]
    assert plan["nodes"]["left"]["secrets"] == []
    assert "release 1, " in cli("up", inventory).ok().out
    assert cli("up", inventory, "--json").ok().json["changed"] is False
    assert '600\n{"print_iter_log":false}\n' in options(lab)

    status = cli("status", inventory, "--json").ok().json
    assert (status["state"], status["groups"][0]["ready"]) == ("serving", True)
    assert len(cli("ask", inventory, "What is 12 * 17?").ok().out.split()) > 5
    assert "TensorRT LLM version: 1.3.0rc13" in cli("logs", inventory, "left").ok().out
    findings = cli("doctor", inventory, "--json").ok().json["findings"]
    assert not [found for found in findings if found["code"].startswith("RUN-")], findings

    switched = cli("upgrade", inventory, "--set", "args.max-batch-size=8", "--min-speed", "0", "--json").ok().json
    assert switched["release"] == 2
    options_of = '{"kv_cache_config":{"max_tokens":512},"no_such":1}'
    broken = cli(
        *("upgrade", inventory, "--set", f"args.extra-llm-api-options={options_of}", "--min-speed", "0", "--json")
    )
    assert (broken.code, "extra-llm-api-options has an unknown key" in broken.error["message"]) == (4, True), broken
    assert "--max_batch_size 8 " in options(lab)
    assert cli("rollback", inventory, "1", "--json").ok().json["release"] > 2
    assert cli("status", inventory, "--json").ok().json["state"] == "serving"
    assert "1 rank removed" in cli("down", inventory).ok().out
    assert ranks(lab) == {"left": [], "right": []}


@pytest.mark.full
def test_a_broken_image_is_rolled_back_a_short_cache_is_reported_and_two_sparks_are_refused(lab, cli, variant):
    nodes = [{"name": "left", "host": lab.sparks[0].host}]
    refused = cli("up", variant(lab, playbook=PLAYBOOK))
    assert refused.code == 1
    assert "your private keys" in refused.err
    short = {**ARGS, "extra-llm-api-options": {"kv_cache_config": {"max_tokens": 512}}}
    allowed = {"allow": [{"code": "FIT-006", "reason": "this start has to succeed"}]}
    assert "FIT-006" in cli("up", variant(lab, nodes=nodes, playbook={**PLAYBOOK, "args": {**OF_VLLM, **short}})).err
    inventory = variant(lab, nodes=nodes, playbook={**PLAYBOOK, "args": {**OF_VLLM, **short}, **allowed})
    cli("up", inventory).ok()
    findings = cli("doctor", inventory, "--json").ok().json["findings"]
    assert "512 of 1,024 tokens" in str([found for found in findings if found["code"] == "RUN-029"])
    reference = load(lab, "broken", files={"usr/local/bin/trtllm-serve": BROKEN})
    broken = cli("upgrade", inventory, "--image", reference, "--min-speed", "0", "--json")
    assert broken.code == 4
    assert "libcudart.so.13" in broken.error["message"]
    assert cli("status", inventory, "--json").ok().json["state"] == "serving"
    cli("down", inventory).ok()


@pytest.mark.full
def test_two_models_share_an_address_and_a_key(lab, cli, variant, monkeypatch):
    """As in inventory/trtllm-pair.yaml: the engines use no key and listen on loopback, the gateway requires it."""
    monkeypatch.setenv("LAB_KEY", "s3cret-of-the-lab")
    nodes, key = [{"name": "left", "host": lab.sparks[0].host}], {"key": {"env": "LAB_KEY"}}
    refused = cli("plan", variant(lab, nodes=nodes, playbook=PLAYBOOK, api=key))
    assert "TensorRT-LLM takes no API key" in refused.err
    # Longer than the tiny model's training context: bench prompts have 2,048 tokens.
    long = {**PLAYBOOK, "args": {**OF_VLLM, **ARGS, "max-seq-len": 8192}, "verify": {"pause_s": 0}}
    long["allow"] = [{"code": "FIT-006", "reason": "the stub takes any length"}]
    models = [{"name": name, "playbook": {**long, "served_name": name}} for name in ("brain", "sprinter")]
    inventory = variant(lab, nodes=nodes, models=models, gateway={"port": 8100}, api=key)
    cli("up", inventory).ok()
    plan = cli("plan", inventory, "--model", "brain", "--json").ok().json
    assert '"max_tokens":8192' in str(plan["nodes"]["left"]["containers"][0]["launcher"]["engine"])
    for name in ("brain", "sprinter"):
        assert cli("ask", inventory, "--model", name, "Hello").ok().out.split()
    assert cli("status", inventory, "--json").ok().json
    asked = "curl -s -o /dev/null -w '%{http_code}' -H 'Authorization: Bearer '$KEY http://$HOST:8100/v1/models"
    answers = [
        lab.sparks[0].run(["env", f"KEY={key}", f"HOST={lab.sparks[0].host}", "sh", "-c", asked]).stdout
        for key in ("wrong", "s3cret-of-the-lab")
    ]
    assert answers == ["401", "200"]
    record = cli("bench", inventory, "--model", "sprinter", "--runs", "1", "--json", timeout=400).ok().json
    assert (record["ended"], len(record["cells"])) == ("complete", 1)
    cli("down", inventory).ok()
