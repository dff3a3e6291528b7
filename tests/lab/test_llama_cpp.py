"""llama.cpp's own server, from xllamacpp's wheel, on this machine: the life of a cluster with one GGUF."""

from __future__ import annotations

import io
import socket
import subprocess
import tarfile

import pytest
import yaml

from sparkcluster.lab.engine import llama_server
from sparkcluster.lab.engine.install import cache_directory
from sparkcluster.lab.engine.tiny_gguf import tiny_gguf

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def python():
    return llama_server.make(cache_directory() / f"llama.cpp-{llama_server.VERSION}")


@pytest.fixture
def cli(make_cli, monkeypatch):
    monkeypatch.setenv("LAB_KEY", "s3cret-of-the-lab")
    return make_cli()


@pytest.fixture
def inventory(tmp_path, python):
    """An inventory and a playbook of this machine; ``inventory(KEY=…)`` sets keys of the playbook."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    model = tmp_path / "model"
    model.mkdir()
    (model / "tiny.gguf").write_bytes(tiny_gguf())
    playbook = {
        "name": "tiny-gguf", "engine": "llama.cpp", "served_name": "tiny",
        "model": {"path": str(model), "file": "tiny.gguf"},
        "args": {"ctx-size": 1024, "parallel": 2, "threads": 1, "cache-ram": 0},
        "request": {"temperature": 0, "max_tokens": 32},
        "verify": {"prompt": "Say something", "max_tokens": 16, "pause_s": 1},
    }  # fmt: skip
    written = {
        "cluster": "gguf",
        "nodes": [{"host": "127.0.0.1", "name": "here", "connection": "local"}],
        "runtime": {"kind": "process", "python": str(python)},
        "state_dir": str(tmp_path / "state"),
        "permit": {"mounts": [str(model)]},
        "playbook": "./tiny-gguf.yaml",
        "api": {"port": port, "key": {"env": "LAB_KEY"}},
    }

    def write(**changes):
        (tmp_path / "tiny-gguf.yaml").write_text(yaml.safe_dump({**playbook, **changes}))
        (tmp_path / "inventory.yaml").write_text(yaml.safe_dump(written))
        return tmp_path / "inventory.yaml"

    return write


def test_a_gguf_is_planned_started_verified_watched_switched_and_stopped(cli, inventory):
    path = inventory()
    cli("preflight", path, "--yes")
    plan = cli("plan", path, "--json").ok().json
    assert plan["nodes"]["here"]["secrets"] == ["LLAMA_API_KEY"]
    assert plan["findings"] == []
    try:
        assert "release 1, " in cli("up", path).ok().out
        assert cli("up", path, "--json").ok().json["changed"] is False

        status = cli("status", path, "--json").ok().json
        assert (status["state"], status["groups"][0]["ready"]) == ("serving", True)
        assert status["groups"][0]["load"]["running"] is not None  # its metrics, which need the key
        assert len(cli("ask", path, "What is 12 * 17?").ok().out.split()) > 20
        assert "listening on http" in cli("logs", path, "here").ok().out
        findings = cli("doctor", path, "--json").ok().json["findings"]
        assert not [found for found in findings if found["severity"] != "info"], findings

        switched = cli("upgrade", path, "--set", "args.ctx-size=2048", "--min-speed", "0", "--json").ok().json
        assert switched["release"] == 2
        broken = cli("upgrade", path, "--set", "args.no-such=1", "--min-speed", "0", "--json")
        assert broken.code == 4
        assert "--no-such" in broken.error["message"]
        assert cli("rollback", path, "1", "--json").ok().json["release"] > 2
        assert cli("status", path, "--json").ok().json["state"] == "serving"
    finally:
        down = cli("down", path)
    assert "1 rank removed" in down.ok().out


def test_a_file_that_is_cut_off_is_not_started(cli, inventory, tmp_path):
    path = inventory()
    file = tmp_path / "model" / "tiny.gguf"
    file.write_bytes(file.read_bytes()[:-1])
    assert cli("up", path).code == 1
    findings = cli("preflight", path, "--json").json["findings"]
    seen = next(found["seen"] for found in findings if found["code"] == "MDL-001")
    assert seen.startswith("tiny.gguf is truncated")


@pytest.mark.full
def test_a_virtual_spark_serves_a_gguf_as_a_process(lab, make_cli, variant, python):
    """By SSH, with llama.cpp's server and the file on that Spark alone; two Sparks are refused with the reason."""
    cli, spark = make_cli(), lab.sparks[0]
    spark.run(["python3", "-m", "venv", "--without-pip", "/opt/llama"])
    (site,) = spark.run(["sh", "-c", "echo /opt/llama/lib/python3*/site-packages"]).stdout.split()
    (package,) = python.parent.parent.glob("lib/python*/site-packages/xllamacpp")
    program = (python.parent / "llama-server").read_text().partition("\n")[2]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as files:
        files.add(package, f"{site}/xllamacpp")
        for name, data in (
            ("opt/llama/bin/llama-server", f"#!/opt/llama/bin/python3\n{program}".encode()),
            ("opt/gguf/tiny.gguf", tiny_gguf()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            files.addfile(entry, io.BytesIO(data))
    subprocess.run(spark.enter(["tar", "-xC", "/"]), input=packed.getvalue(), check=True)
    playbook = {
        "engine": "llama.cpp", "model": {"path": "/opt/gguf", "file": "tiny.gguf"}, "env": None, "container": None,
        "args": None, "image": None,
    }  # fmt: skip
    keys = {"playbook": playbook, "runtime": {"kind": "process", "python": "/opt/llama/bin/python3"}}
    keys["permit"] = {"mounts": ["/opt/gguf"]}
    refused = cli("up", variant(lab, **keys))
    assert refused.code == 1
    assert "its rpc-server has no authentication" in refused.err
    path = variant(lab, nodes=[{"name": "left", "host": spark.host}], **keys)
    assert "release 1, " in cli("up", path).ok().out
    assert cli("ask", path, "Hello", "--max-tokens", "8").ok().out.split()
    findings = cli("doctor", path, "--json").ok().json["findings"]
    assert not [found for found in findings if found["code"].startswith("RUN-")], findings
    assert "1 rank removed" in cli("down", path).ok().out
