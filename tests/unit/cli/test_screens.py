"""Output of the main commands on a terminal of 80 columns, with and without colour, and in a pipe.

The files of tests/golden/screens have both streams as a terminal shows them, with escape sequences as ``␛[…m``, and
without progress, since that depends on the time. ``UPDATE_GOLDEN=1`` rewrites them; read the diff.
"""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkcluster.cli import common, progress
from sparkcluster.cli.main import guarded
from sparkcluster.facts.between import Reach
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import connect, preflight
from sparkcluster.printable import COLOURS
from sparkcluster.spec.load import load
from tests.unit import golden
from tests.unit.screen import Terminal, broken, shown

INVENTORY = {
    "cluster": "atlas",
    "nodes": [{"name": "alpha", "host": "192.168.86.11"}, {"name": "beta", "host": "192.168.86.12"}],
    "playbook": "qwen.yaml",
    "api": {"host": "management"},
}
PLAYBOOK = {"name": "qwen", "model": {"id": "Qwen/Qwen3-8B"}, "image": "vllm/vllm-openai:v0.18.0"}
DIGEST = "vllm/vllm-openai@sha256:" + "d1" * 32
TOKEN = {"content": "12 * 17 is 204.", "reasoning": "", "finish_reason": "stop", "usage": {"completion_tokens": 9},
         "ttft_s": 0.2, "total_s": 0.6, "status": 200}  # fmt: skip
LOG = [
    "INFO loading",
    "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [192.168.177.12]:30890",
]

# Name of the screen, deployment on the nodes, exit code, and the command line.
SCREENS = {
    "help": ("nothing", 0, "--help"),
    "up-help": ("nothing", 0, "up --help"),
    "unknown-flag": ("nothing", 2, "up atlas.yaml --dryrun"),
    "playbooks": ("nothing", 0, "playbooks"),
    "checks-code": ("nothing", 0, "checks net-006"),
    "checks": ("nothing", 0, "checks"),
    "lint": ("nothing", 1, "lint atlas.yaml --set args.max-modle-len=4096"),
    "fit": ("nothing", 0, "fit gpt-oss-120b"),
    "fit-together": (
        "nothing",
        1,
        "fit gpt-oss-120b gpt-oss-20b qwen3-8b-dflash --set args.gpu-memory-utilization=auto",
    ),
    "connect": ("nothing", 0, "connect atlas.yaml"),
    "status": ("served", 0, "status atlas.yaml"),
    "status-dead": ("dead", 1, "status atlas.yaml"),
    "preflight": ("served", 0, "preflight atlas.yaml"),
    "preflight-why": ("wrong", 1, "preflight atlas.yaml -v"),
    "plan": ("staged", 0, "plan atlas.yaml"),
    "doctor": ("served", 0, "doctor atlas.yaml"),
    "doctor-dead": ("dead", 1, "doctor atlas.yaml"),
    "releases": ("served", 1, "releases atlas.yaml"),
}


class Notes(progress.Lines):
    """Shows only notes, and no progress."""

    def step(self, name: str, text: str = "") -> None: ...

    def progress(self, node: str, text: str) -> None: ...


@pytest.fixture
def screen(world, tmp_path, monkeypatch):
    """``screen(name, stream, colour)``: output to a terminal or a pipe, line by line."""
    monkeypatch.chdir(tmp_path)
    for name in ("SPARK_API_KEY", "HF_TOKEN", "SPARKCLUSTER_INVENTORY", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("SPARKCLUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(connect, "ssh_target", lambda _: None)
    monkeypatch.setattr(preflight, "ask_reach", lambda *_, **__: Reach(()))
    monkeypatch.setattr(progress, "reporter", lambda **_: Notes(sys.stderr))
    monkeypatch.setattr(progress, "SILENT_S", 3600)
    monkeypatch.setattr(sys, "argv", ["sparkcluster"])
    write(tmp_path)

    def run(name: str, stream: io.StringIO, *, colour: bool = True) -> list[str]:
        deployed, code, words = SCREENS[name]
        monkeypatch.setattr(common, "fleet_of", lambda *_: Fleet(hosts(world, deployed)))
        monkeypatch.setenv("COLUMNS", "80")
        if not colour:
            monkeypatch.setenv("NO_COLOR", "1")
        with monkeypatch.context() as streams:
            streams.setattr(sys, "stdout", stream)
            streams.setattr(sys, "stderr", stream)
            try:
                ended = guarded(words.split())
            except SystemExit as end:  # --help of a command
                ended = int(end.code or 0)
        lines = [re.sub(r"\d+\.\d s\b", "0.0 s", line) for line in shown(stream.getvalue())]
        assert ended == code, "\n".join(lines)
        return lines

    return run


def write(directory: Path) -> None:
    """The input files of the commands."""
    for name, document in (("atlas", INVENTORY), ("qwen", PLAYBOOK)):
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


def hosts(world: Any, deployed: str) -> dict[str, FakeHost]:
    """Two nodes: empty, with staged weights, with a serving release, with a dead engine, or with many faults."""
    one = world()
    one.spec = load(Path("atlas.yaml"), None)
    if deployed != "nothing":
        one.staged()
    plan = one.plan(3)
    if deployed in ("served", "dead"):
        image = one.facts["alpha"].model_dump()["image"]
        one.change("alpha", image=image | {"digest": DIGEST})
        one.run(plan, "alpha").run(plan, "beta", state="running" if deployed == "served" else "exited")
        one.record(plan, 3)
    if deployed == "wrong":
        gib = 2**30
        disks = [{**disk, "free_bytes": 3 * gib} for disk in one.facts["beta"].model_dump()["disks"]]
        one.change("beta", infiniband_devices=False, disks=disks, groups=["nvidia"])
    found = {}
    for name, facts in one.facts.items():
        probed = facts.model_dump(mode="json")
        ask: Any = [{"text": "12 * 17"}, {"done": TOKEN}]
        if deployed == "dead":
            ask = {"error": {"status": None, "kind": "refused", "message": "nothing listens"}}
        log = LOG if deployed == "dead" and name == "alpha" else ["Application startup complete."]
        release = probed["release"]
        found[name] = (
            FakeHost(name)
            .program("probe", lambda _, said=probed: {**said, "clock_s": time.time()})
            .program("observe", observed(one, name, log))
            .program("releases", {"records": [release["record"]] if release else []})
            .program("ask", lambda _, said=ask: said)
        )
    return found


def observed(one: Any, name: str, log: list[str]) -> dict[str, Any]:
    """The observe program's answer of a node with the ranks of ``one``."""
    role = "head" if name == "alpha" else "worker"
    launcher = {"role": role, "members": ["192.168.177.11", "192.168.177.12"], "group": "default",
                "engine": ["vllm", "serve", "m"]}  # fmt: skip
    ranks = [
        {"name": rank.name, "state": rank.state, "labels": rank.labels, "log": log, "launcher": launcher,
         "exit_code": 137 if rank.state == "exited" else None}
        for rank in one.facts[name].ranks
    ]  # fmt: skip
    head = {"health": 200, "ray": dict.fromkeys(launcher["members"], True)} if role == "head" else {}
    return {"ranks": ranks, "gpus": [], "traffic": [], **head}


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_matches_its_file_and_has_the_same_text_without_colour(screen, name):
    """Only text to be pasted is wider than the terminal; a pipe gets no escape sequence."""
    coloured = screen(name, Terminal())
    text = "\n".join(coloured).replace("\x1b", "␛") + "\n"
    golden.check_text(golden.ROOT / "screens" / f"{name}-80.txt", text)
    plain = screen(name, Terminal(), colour=False)
    assert plain == [COLOURS.sub("", line) for line in coloured]
    assert broken(plain, 80) == []
    assert "\x1b" not in "".join(screen(name, io.StringIO()))
