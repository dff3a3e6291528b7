"""What the Docker CLI adds to a pull by the engine's API, and the progress that the engine reports."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from sparkcluster.node import pull

GOLDEN = Path(__file__).parents[2] / "golden" / "pulls"

AUTH = base64.b64encode(b"ada:pass:word").decode()
LOGIN = {"username": "ada", "password": "pass:word"}
HUB = "https://index.docker.io/v1/"


@pytest.mark.parametrize(
    ("reference", "name", "tag"),
    [
        ("vllm/vllm-openai", "vllm/vllm-openai", "latest"),
        ("vllm/vllm-openai:v0.24.0", "vllm/vllm-openai", "v0.24.0"),
        ("hub:5000/vllm", "hub:5000/vllm", "latest"),
        ("hub:5000/a/vllm:v1", "hub:5000/a/vllm", "v1"),
        ("vllm@sha256:aa", "vllm", "sha256:aa"),
        ("hub:5000/vllm:v1@sha256:aa", "hub:5000/vllm", "sha256:aa"),
    ],
)
def test_only_one_tag_or_digest_is_pulled(reference, name, tag):
    """Without a tag, the API pulls all images of a repository."""
    assert pull.pull_path(reference) == f"/images/create?fromImage={name}&tag={tag}"


def header(reference, config):
    value = pull.auth_header(reference, config)
    return value if value is None else json.loads(base64.urlsafe_b64decode(value))


@pytest.mark.parametrize(
    ("reference", "config", "login"),
    [
        ("nvcr.io/nvidia/vllm", {"auths": {"nvcr.io": {"auth": AUTH}}}, {**LOGIN, "serveraddress": "nvcr.io"}),
        ("vllm/vllm-openai", {"auths": {HUB: {"auth": AUTH}}}, {**LOGIN, "serveraddress": HUB}),
        ("vllm/vllm-openai", {"auths": {"nvcr.io": {"auth": AUTH}}}, None),
        ("ghcr.io/a/b", {"auths": {"ghcr.io": {"identitytoken": "t"}}}, {"identitytoken": "t", "serveraddress": "ghcr.io"}),
    ],
)  # fmt: skip
def test_logins_in_docker_config_json(reference, config, login):
    assert header(reference, config) == login


@pytest.mark.parametrize(
    ("config", "asked", "found", "login"),
    [
        ({"credsStore": "pass"}, ("pass", "ghcr.io"), {"Username": "ada", "Secret": "s"}, {"username": "ada", "password": "s"}),
        ({"credHelpers": {"ghcr.io": "gh"}, "credsStore": "pass"}, ("gh", "ghcr.io"),
         {"Username": "<token>", "Secret": "t"}, {"identitytoken": "t"}),
    ],
)  # fmt: skip
def test_logins_from_credential_helpers(config, asked, found, login, monkeypatch):
    monkeypatch.setattr(pull, "ask_helper", lambda *each: found if each == asked else {})
    assert header("ghcr.io/a/b", config) == {**login, "serveraddress": "ghcr.io"}


def test_a_credential_helper_is_called_as_docker_calls_it(tmp_path, monkeypatch):
    helper = tmp_path / "docker-credential-test"
    helper.write_text('#!/bin/sh\n[ "$1" = get ] && printf \'{"Username": "%s", "Secret": "s"}\' "$(cat)"\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert pull.ask_helper("test", "ghcr.io") == {"Username": "ghcr.io", "Secret": "s"}
    assert pull.ask_helper("absent", "ghcr.io") == {}


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.jsonl")))
def test_recorded_streams_lose_no_byte_and_end_complete(name):
    """From Docker 26.1 and 28.5, with overlay2 and containerd's image store; one pull was interrupted and resumed."""
    layers: pull.Layers = {}
    found = [pull.count(layers, json.loads(line)) for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]
    done = [each["bytes"] for each in found]
    assert done == sorted(done)
    assert found[-1]["bytes"] == found[-1]["total"]
    assert len({each["total"] for each in found}) <= 2, "its size is unknown at first"
