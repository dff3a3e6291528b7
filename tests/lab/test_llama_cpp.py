"""The real llama.cpp server from xllamacpp's wheel, on this machine: the life of a cluster with one GGUF."""

from __future__ import annotations

import io
import re
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from sparkcluster.lab.engine import llama_server
from sparkcluster.lab.engine.install import Tool, cache_directory
from sparkcluster.lab.engine.tiny_gguf import tiny_gguf
from tests.lab.gateway import Asking, Gateway, running
from tests.lab.hub import Hub
from tests.lab.test_serving import until

pytestmark = pytest.mark.engine

CONTEXT = 4096
"""Context per request; bench prompts have 2,048 tokens."""


@pytest.fixture(scope="module")
def python():
    return llama_server.make(cache_directory() / f"llama.cpp-{llama_server.VERSION}")


@pytest.fixture
def cli(make_cli, monkeypatch):
    monkeypatch.setenv("LAB_KEY", "s3cret-of-the-lab")
    return make_cli()


@pytest.fixture
def inventory(tmp_path, python):
    """An inventory and a playbook for this machine; ``inventory(KEY=…)`` sets keys of the playbook."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    model = tmp_path / "model"
    model.mkdir()
    (model / "tiny.gguf").write_bytes(tiny_gguf(CONTEXT))
    playbook = {
        "name": "tiny-gguf", "engine": "llama.cpp", "served_name": "tiny",
        "model": {"path": str(model), "file": "tiny.gguf"},
        "args": {"ctx-size": 2 * CONTEXT, "parallel": 2, "threads": 1, "cache-ram": 0},
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
        metrics = cli("export", path, "--once").ok().out
        assert "engine_generated_tokens_total" in metrics
        (cell,) = cli("bench", path, "--runs", "1", "--json").ok().json["cells"]
        assert cell["marks"] == []

        switched = cli("upgrade", path, "--set", f"args.ctx-size={CONTEXT}", "--min-speed", "0", "--json").ok().json
        assert switched["release"] == 2
        broken = cli("upgrade", path, "--set", "args.no-such=1", "--min-speed", "0", "--json")
        assert broken.code == 4
        assert "--no-such" in broken.error["message"]
        assert cli("rollback", path, "1", "--json").ok().json["release"] > 2
        assert cli("status", path, "--json").ok().json["state"] == "serving"
    finally:
        down = cli("down", path)
    assert "1 rank removed" in down.ok().out


def test_a_truncated_file_is_not_started(cli, inventory, tmp_path):
    path = inventory()
    file = tmp_path / "model" / "tiny.gguf"
    file.write_bytes(file.read_bytes()[:-1])
    assert cli("up", path).code == 1
    findings = cli("preflight", path, "--json").json["findings"]
    seen = next(found["seen"] for found in findings if found["code"] == "MDL-001")
    assert seen.startswith("tiny.gguf is truncated")


@pytest.mark.full
def test_a_virtual_spark_serves_a_gguf_as_a_process(lab, make_cli, variant, python):
    """By SSH, with llama.cpp's server and the file on that Spark only; two Sparks are refused with the reason."""
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


@pytest.fixture
def containers(lab, python, image, variant, monkeypatch):
    """The inventory of a gateway and two models from a hub, each on a Spark; the image is as small as the Dockerfile's."""
    monkeypatch.setenv("LAB_KEY", "s3cret-of-the-lab")
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    if not (site / "huggingface_hub").exists():
        Tool(site).install(["huggingface_hub"])
    inside = f"usr/local/lib/{site.parent.name}/dist-packages"
    files = {f"{inside}/{each.relative_to(site)}": each.read_bytes() for each in site.rglob("*") if each.is_file()}
    (openmp,) = Path("/usr/lib").glob("*/libgomp.so.1")
    program = (python.parent / "llama-server").read_text().partition("\n")[2]
    files |= {str(openmp.relative_to("/")): openmp.read_bytes()}
    files |= {"usr/local/bin/llama-server": f"#!/usr/bin/python3\n{program}".encode()}
    served = {
        "name": "tiny-gguf", "engine": "llama.cpp", "model": {"id": "lab/tiny-GGUF", "file": "tiny.gguf"},
        "image": image(lab, "llama", files=files), "verify": {"prompt": "Say something", "max_tokens": 16, "pause_s": 0},
        "args": {"ctx-size": CONTEXT, "parallel": 1, "threads": 1, "cache-ram": 0}, "request": {"temperature": 0},
    }  # fmt: skip
    path = variant(lab, gateway={}, playbook={}, api={"key": {"env": "LAB_KEY"}})
    written = yaml.safe_load(path.read_text())
    del written["playbook"]
    written["models"] = []
    for spark, name, more in zip(lab.sparks, ("always", "later"), ({}, {"on_demand": {"idle_s": 600}}), strict=True):
        (path.parent / f"{name}.yaml").write_text(yaml.safe_dump({**served, "served_name": name}))
        written["models"].append({"playbook": f"./{name}.yaml", "name": name, "nodes": [spark.name], **more})
    path.write_text(yaml.safe_dump(written))
    with Hub(
        lab.sparks[0].state.gateway, {"lab/tiny-GGUF": {"tiny.gguf": tiny_gguf(CONTEXT), "other.gguf": b""}}
    ) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield path
        assert {file for _, file in hub.served} == {"tiny.gguf"}


@pytest.mark.full
def test_two_ggufs_in_containers_behind_a_gateway(lab, make_cli, containers, ranks):
    """Downloaded from a hub, served, measured and watched; a killed rank is restarted, as is one on demand."""
    cli, path, (left, right) = make_cli(), containers, lab.sparks
    cli("up", path).ok()
    gateway = Gateway(left.host, "s3cret-of-the-lab")
    assert gateway.chat("always").json["model"] == "always"
    loading = Asking(gateway, "later", stream=True).answer()
    assert {event["model"] for event in loading.events} == {"later"}

    status = cli("status", path, "--json").json
    assert {each["name"]: each["state"] for each in status["gateway"]["models"]} == {
        "always": "ready",
        "later": "ready",
    }
    assert [each["groups"][0]["load"]["running"] for each in status["models"]] == [0, 0]
    metrics = cli("export", path, "--once").ok().out
    for name in ("always", "later"):
        assert re.search(rf"sparkcluster_engine_generated_tokens_total\{{[^}}]*model=\"{name}\"", metrics)
    for words in (["always"], ["later", "--through", "gateway"]):
        record = cli("bench", path, "--runs", "1", "--json", "--model", *words).ok().json
        (cell,) = record["cells"]
        assert (cell["figures"]["prompt_tokens"], cell["figures"]["answer_tokens"]) == ([2048], [128])
        assert (cell["marks"], cell["engine"]["generated"]) == ([], 128)

    cli("enable", path, "--model", "always").ok()
    left.run(["docker", "kill", running(lab, left)["always"]])
    assert "always" not in running(lab, left)
    until(lambda: gateway.chat("always").status == 200, pause_s=2)
    findings = cli("doctor", path, "--model", "always", "--json").ok().json["findings"]
    assert not [found for found in findings if found["severity"] == "error"], findings
    cli("unload", path, "later").ok()
    until(lambda: "later" not in running(lab, right))
    cli("down", path).ok()
    assert not any(ranks(lab).values())
