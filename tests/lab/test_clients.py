"""From creating a key to a client's answer on virtual Sparks with the stub engine, and a start that tests a tool call."""

from __future__ import annotations

import json
import subprocess

import pytest


def pasted(block):
    """The document that the last line of a pasted block prints."""
    done = subprocess.run(["bash", "-c", block], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done
    return done.stdout


def curl_line(out):
    return next(line.split(None, 1)[1] for line in out.splitlines() if line.split()[:2] == ["try", "curl"])


@pytest.mark.full
def test_a_key_is_created_used_by_a_client_and_rotated(lab, cli, variant, tmp_path):
    inventory = variant(lab, ignore=None)
    file = tmp_path / "spark.key"
    open_ = cli("preflight", inventory, "--json").ok().json
    assert ("NET-020", "warning") in {(each["code"], each["severity"]) for each in open_["findings"]}

    made = cli("key", inventory, "--file", file).ok()
    first = file.read_text().strip()
    up = cli("up", inventory).ok()
    assert "without a key" not in up.err
    assert "tiny" in {model["id"] for model in json.loads(pasted(curl_line(made.out)))["data"]}
    client = cli("connect", inventory, "--client", "curl").ok()
    assert json.loads(pasted(client.out))["choices"][0]["message"]["content"]
    assert [group["warning"] for group in cli("status", inventory, "--json").ok().json["groups"]] == [None]

    cli("key", inventory, "--rotate").ok()
    second = file.read_text().strip()
    assert second != first
    assert "Unauthorized" in pasted(curl_line(made.out))
    # the cluster still serves with the key of its start, and reports that
    status = cli("status", inventory, "--json").ok().json
    assert status["state"] == "serving"
    assert [f"sparkcluster restart {inventory}" in group["warning"] for group in status["groups"]] == [True]
    seen = cli("doctor", inventory, "--json").ok().json["findings"]
    assert ("RUN-020", "warning") in {(each["code"], each["severity"]) for each in seen}
    refused = cli("up", inventory)
    assert refused.code == 1
    assert "a different secret" in refused.err
    assert f"sparkcluster restart {inventory}" in refused.err
    cli("restart", inventory).ok()
    assert json.loads(pasted(client.out))["choices"][0]["message"]["content"]
    assert not {first, second} & {word.strip('"') for word in (made.out + up.out + client.out).split()}
