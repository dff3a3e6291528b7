"""What ``up`` says at its end can be pasted, and names no key."""

from __future__ import annotations

import dataclasses

import pytest

from sparkcluster.cli import up
from sparkcluster.hosts.resolve import SshTarget
from sparkcluster.inspect import connect
from sparkcluster.spec.library import find

DOCUMENT = {
    "cluster": "atlas", "changed": True, "release": 3, "seconds": 66.5, "model": "Qwen/Qwen3-8B",
    "groups": [{"name": "default", "nodes": ["a"], "endpoint": "http://10.0.0.7:8000/v1"}],
}  # fmt: skip


@pytest.fixture
def shown(cluster, monkeypatch, capsys):
    """``shown(**inventory)``: the last lines of ``up`` on stdout, and what it says on stderr."""
    monkeypatch.setattr(connect, "ssh_target", lambda node: SshTarget(node.host, "nvidia"))

    def show(chosen=(), path=None, **inventory):
        spec = dataclasses.replace(cluster({"a": "192.168.1.11"}, **inventory), chosen=chosen)
        spec = dataclasses.replace(spec, playbook_path=path or spec.playbook_path)
        up.show(DOCUMENT, "my desk.yaml", spec)
        out, err = capsys.readouterr()
        return [line.strip() for line in out.splitlines()[3:]], err

    return show


def test_what_serves_is_tried_by_curl_with_the_key_that_the_shell_reads(shown):
    lines, err = shown(api={"host": "management", "key": {"file": "~/k"}})
    assert lines == [
        "try    sparkcluster ask 'my desk.yaml' \"Hello\"",
        'curl   curl -H "Authorization: Bearer $(cat ~/k)" http://10.0.0.7:8000/v1/models',
        "use    sparkcluster connect 'my desk.yaml'",
        "stop   sparkcluster down 'my desk.yaml'",
    ]
    assert err == ""


def test_what_listens_on_loopback_is_reached_by_a_tunnel(shown):
    lines, err = shown()
    assert lines[1:3] == [
        "tunnel ssh -N -L 8000:127.0.0.1:8000 192.168.1.11",
        "curl   curl http://127.0.0.1:8000/v1/models",
    ]
    assert err == ""


def test_what_the_command_line_chose_is_kept_by_writing_it_down(shown):
    assert [line for line in shown()[0] if line.startswith("keep")] == []
    path = find("qwen3.6-27b-nvfp4", [])
    lines, _ = shown(("--playbook", "qwen3.6-27b-nvfp4", "--image", "vllm/x:1", "--set", "args.max-num-seqs=8"), path)
    assert lines[-2:] == [
        "keep   write `playbook: qwen3.6-27b-nvfp4` into 'my desk.yaml', in place of `playbook: qwen`",
        "keep   give the next up --image vllm/x:1 --set args.max-num-seqs=8 too, or write it into a playbook",
    ]
