"""Data about a container: the node program runs for real, with a Docker engine and a ``docker`` of the test."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from pathlib import Path

import pytest

from sparkcluster.cli.main import guarded
from sparkcluster.errors import UsageError
from sparkcluster.hosts.local import LocalHost
from sparkcluster.inspect.container import inspected
from tests.unit.docker_engine import Engine

BOX = {"Name": "/vllm", "Image": "sha256:aa", "State": {"Running": True}}
SERVE = ["vllm", "serve", "org/m", "--override", "two\nlines"]


def encoded(words):
    return base64.b64encode(b"".join(word.encode() + b"\0" for word in words)).decode()


@pytest.fixture
def docker(monkeypatch, tmp_path):
    """Creates the engine of this machine and its client, which prints ``processes`` for any ``docker exec``."""
    with tempfile.TemporaryDirectory() as short:
        engine = Engine(Path(short) / "s")
        monkeypatch.setenv("DOCKER_HOST", f"unix://{engine.socket}")
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

        def make(documents, *processes):
            engine.documents = documents.get
            lines = [f"{number} {encoded(argv)} {encoded(env)}" for number, argv, env in processes]
            (tmp_path / "out").write_text("\n".join([*lines, "99  "]))
            (tmp_path / "docker").write_text(f"#!/bin/sh\ncat {tmp_path}/out\n")
            (tmp_path / "docker").chmod(0o755)

        yield make
        engine.close()


def test_documents_and_processes_arrive_in_one_text(docker):
    image = {"Id": "sha256:aa", "RootFS": {}}
    docker(
        {"/containers/vllm/json": BOX, "/images/sha256:aa/json": image},
        (20, SERVE, ["A=1"]), (1, ["sleep", "infinity"], ["SECRET=x"]), (3, [], ["B=2"]),
    )  # fmt: skip

    assert json.loads(inspected(LocalHost("alpha"), "vllm")) == [
        BOX,
        image,
        {"Processes": [{"Argv": ["sleep", "infinity"], "Environ": []}, {"Argv": SERVE, "Environ": ["A=1"]}]},
    ]


def test_running_containers_are_listed_if_the_name_is_unknown(docker):
    docker({"/containers/json": [{"Names": [f"/c{number}"]} for number in range(3)]})

    with pytest.raises(UsageError, match="alpha has no container vllm") as caught:
        inspected(LocalHost("alpha"), "vllm")

    assert caught.value.hint == "running containers: c0, c1, c2"


def test_the_container_command_shows_the_next_command(docker, monkeypatch, capsys):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    for words in ([], ["x.sh", "--container", "vllm"], ["x.sh", "--node", "alpha"]):
        assert guarded(["import", *words]) == 2
        assert "give either FILE or --container" in capsys.readouterr().err
    assert guarded(["import", "--container", "vllm", "--node", "alpha:22"]) == 2
    assert "--node nvidia@192.168.1.11" in capsys.readouterr().err
    assert guarded(["import", "--container", "vllm"]) == 2
    assert "cannot query Docker on this machine: no such file" in capsys.readouterr().err
