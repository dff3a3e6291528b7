"""``up`` on a running cluster: groups that answer stay, dead ones are replaced, everything else needs a flag."""

from __future__ import annotations

import json
import threading
import time

import pytest

CONTROL = "/tmp/stub-control"
SERVES = {"env": {"STUB_CONTROL": CONTROL}, "verify": {"timeout_s": 8, "pause_s": 1}}


def set_stub_faults(spark, *faults):
    """Set faults of the stub in a Spark's container; replaces earlier ones."""
    words = " ".join(faults)
    spark.run(["sh", "-c", f"docker exec $(docker ps -q) sh -c 'printf \"%s\\n\" {words} > {CONTROL}'"])


COMPLETE = """
import json, sys, urllib.request
messages = [{"role": "user", "content": "hello"}]
body = json.dumps({"messages": messages, "max_tokens": int(sys.argv[2]), "ignore_eos": True}).encode()
request = urllib.request.Request(sys.argv[1] + "/chat/completions", body, {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""


def complete(spark, endpoint, tokens):
    """The answer to a request sent on the Spark."""
    return json.loads(spark.run(["python3", "-c", COMPLETE, endpoint, str(tokens)]).stdout)


def until(done, limit_s=120, pause_s=0.1):
    began = time.monotonic()
    while not (found := done()):
        assert time.monotonic() - began < limit_s
        time.sleep(pause_s)
    return found


def test_down_waits_for_requests_in_flight_and_refuses_new_ones(lab, cli, variant, ranks):
    path = variant(lab, playbook=SERVES)
    cli("up", path).ok()
    endpoint = cli("status", path, "--json").ok().json["endpoint"]
    head = lab.sparks[0]
    set_stub_faults(head, "slow=1")  # a token each second
    answers = []
    asking = threading.Thread(target=lambda: answers.append(complete(head, endpoint, 40)))
    asking.start()
    time.sleep(2)
    down = cli.start("down", path)
    down.wait_for("requests in flight within 60 s")
    logs = ["sh", "-c", "docker logs $(docker ps -q) 2>&1"]
    until(lambda: "mode=drain timeout=60s" in head.run(logs, check=False).stdout)

    (refused,) = complete(head, endpoint, 5)["choices"]
    assert (refused["message"]["content"], refused["finish_reason"]) == (None, "abort")
    status = cli("status", path, "--json")
    (group,) = status.json["groups"]
    assert (status.code, status.json["state"], group["ready"]) == (1, "degraded", False)
    assert "the engine aborted the request" in group["why"]
    assert not answers, "the first request is still running"
    assert all(ranks(lab).values()), "the worker continues for as long"

    asking.join(300)
    ((choice,),) = [answer["choices"] for answer in answers]
    assert (len(choice["message"]["content"].split()), choice["finish_reason"]) == (40, "length")
    down.wait().ok()
    assert not any(ranks(lab).values())


@pytest.mark.full
def test_garbage_is_refused_and_replaced_on_request(lab, cli, variant, ranks):
    path = variant(lab, playbook=SERVES)
    cli("up", path).ok()
    before = ranks(lab)
    set_stub_faults(lab.sparks[0], "garbage=repeat")
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


@pytest.mark.full
def test_a_hung_engine_is_replaced_after_the_time_limit_of_a_prefill(lab, cli, variant, ranks):
    path = variant(lab, playbook=SERVES)
    cli("up", path).ok()
    before = ranks(lab)
    set_stub_faults(lab.sparks[1], "hang-serve")
    status = cli("status", path, "--json")
    assert (status.code, status.json["state"]) == (1, "degraded")
    assert "long prompt" in status.json["groups"][0]["why"]
    up = cli("up", path).ok()
    assert "no counter of the engine has moved for 6" in up.err
    assert ranks(lab) != before
    assert cli("status", path, "--json").ok().json["state"] == "serving"
