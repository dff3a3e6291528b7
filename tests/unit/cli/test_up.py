"""The end of the output of ``up``: the endpoint, and commands to paste."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sparkcluster.cli import change
from sparkcluster.hosts.resolve import SshTarget
from sparkcluster.inspect import connect

DOCUMENT = {
    "cluster": "atlas", "state": "serving", "changed": True, "release": 3, "seconds": 66.5, "model": "Qwen/Qwen3-8B",
    "groups": [{"name": "default", "nodes": ["a"], "endpoint": "http://10.0.0.7:8000/v1"}],
    "from": 2, "restored": 0, "moved_bytes": 0, "downtime_s": 0.0, "speed": {},
}  # fmt: skip


@pytest.fixture
def shown(cluster, monkeypatch, capsys):
    """``shown(**inventory)``: the last lines of ``up``."""
    monkeypatch.setattr(connect, "ssh_target", lambda node: SshTarget(node.host, "nvidia"))

    def show(document=DOCUMENT, model="", **inventory):
        spec = cluster({"a": "192.168.1.11"}, **inventory)
        spec = dataclasses.replace(spec, inventory_path=Path("my desk.yaml"), model=model)
        change.show(document, spec)
        return capsys.readouterr().out.splitlines()

    return show


def test_the_endpoint_is_shown_first_then_the_next_command(shown):
    lines = shown(api={"host": "management", "key": {"file": "~/k"}})
    assert lines == [
        "atlas is up   http://10.0.0.7:8000/v1   Qwen/Qwen3-8B   release 3, 66.5 s",
        "  ask       sparkcluster ask 'my desk.yaml' \"Hello\"",
        "  clients   sparkcluster connect 'my desk.yaml'",
        "  stop      sparkcluster down 'my desk.yaml'",
    ]


def test_an_endpoint_on_loopback_is_reached_by_a_tunnel(shown):
    assert shown()[1] == "  tunnel    ssh -N -L 8000:127.0.0.1:8000 192.168.1.11"


def test_groups_are_named_if_there_are_several(shown):
    groups = [{"name": name, "nodes": [name], "endpoint": f"http://{name}:8000/v1"} for name in ("east", "west")]
    lines = shown(DOCUMENT | {"changed": False, "groups": groups}, api={"host": "interconnect"})
    assert lines[:3] == [
        "atlas is already up   2 groups   Qwen/Qwen3-8B   release 3, 66.5 s",
        "  east      http://east:8000/v1   east",
        "  west      http://west:8000/v1   west",
    ]


def test_a_model_on_demand_shows_how_it_is_loaded(shown):
    lines = shown(DOCUMENT | {"state": "on demand"}, "m", api={"host": "management"})
    assert lines[0].startswith("atlas is on demand   http://10.0.0.7:8000/v1")
    assert lines[1] == "  load      sparkcluster load 'my desk.yaml' m"
