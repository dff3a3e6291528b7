"""The systemd unit of a guard."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from sparkcluster.node import agent, common, unit

NAME = "sparkcluster-atlas.service"


def test_systemd_accepts_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    directory = tmp_path / "with blanks/100%/$HOME/enabled"
    directory.mkdir(parents=True)
    path = tmp_path / NAME
    path.write_text(unit.text(str(directory)))
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", path], capture_output=True, text=True, check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(path) not in done.stderr  # messages about other units of this machine are ignored
    assert NAME not in done.stderr


def test_a_guard_is_a_user_unit_that_outlives_the_login(tmp_path, monkeypatch):
    log = tmp_path / "log"
    for name in ("booted", "bin"):
        (tmp_path / name).mkdir()
    for name in ("systemctl", "loginctl"):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\necho {name} "$*" >> {log}\n')
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setattr(unit, "BOOTED", str(tmp_path / "booted"))
    monkeypatch.setattr(unit.pwd, "getpwuid", lambda _: type("User", (), {"pw_name": "nvidia"}))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    directory, path = str(tmp_path / "clusters/atlas/enabled"), tmp_path / ".config/systemd/user" / NAME
    assert unit.install(directory)["unit"] == str(path)
    assert "KillMode=process\n" in path.read_text()  # ranks stay when the guard ends
    unit.remove(directory)
    assert not path.exists()
    assert log.read_text().splitlines() == [
        "loginctl enable-linger nvidia",
        "systemctl --user daemon-reload",
        f"systemctl --user enable {NAME}",
        f"systemctl --user restart {NAME}",
        f"systemctl --user disable --now {NAME}",
    ]


@pytest.fixture
def node(tmp_path, monkeypatch):
    """``node(*steps)``: the answer of the agent under a lease; ``node.enabled`` is the directory."""
    monkeypatch.setattr(unit, "BOOTED", str(tmp_path / "not booted"))
    state = tmp_path / "state"
    lock_path, record, _ = common.lease_files({"state_dir": str(state), "cluster": "atlas"})
    lock = common.try_lock(lock_path)
    common.write_atomically(record, json.dumps({"epoch": 7, "granted": True, "operator": "ann"}).encode())

    def change(*steps):
        return agent.main({"state_dir": str(state), "cluster": "atlas", "epoch": 7, "steps": list(steps)}, None)

    change.cluster = tmp_path / "state/clusters/atlas"
    change.enabled = change.cluster / "enabled"
    yield change
    lock.close()


def recorded(number, **more):
    return {"do": "record", "number": number, "record": {"number": number}, **more}


def enable(number):
    config = {"cluster": "atlas", "node": "alpha", "token": "ab" * 32}
    return {"do": "enable", "number": number, "program": "x", "config": config}


STEPS = [{"do": "put"}]
START = {
    "group": "default", "head": False, "address": "127.0.0.2", "peers": {}, "ranks": [], "steps": STEPS, "ask": None,
    "ready_timeout_s": 60,
}  # fmt: skip


def test_enable_requires_the_release_recorded_on_this_node(node):
    assert "release 3" in node(enable(3))["failed"]["message"]
    node(recorded(3))  # by an older version
    assert "failed" in node(enable(3))
    node(recorded(3, start=START))
    assert "failed" in node(enable(2))
    assert not node.enabled.exists()
    assert "results" in node(enable(3))
    assert node.enabled.stat().st_mode & 0o777 == 0o700
    assert (node.enabled / "config.json").stat().st_mode & 0o777 == 0o600


def test_the_gateways_socket_is_installed_without_a_release_and_removed_afterwards(node):
    step = enable(0)
    del step["number"]
    assert node(step)["results"][0]["command"][-1] == str(node.enabled)
    assert not (node.cluster / "start.json").exists()
    assert "results" in node({"do": "disable"})
    assert not node.enabled.exists()


def test_a_record_stores_the_start_and_a_record_without_one_keeps_it(node):
    node(recorded(3, start=START), enable(3), {"do": "stay-down"})
    start = json.loads((node.cluster / "start.json").read_text())
    assert (start["steps"], start["number"], start["epoch"]) == (STEPS, 3, 7)
    assert (node.enabled / "stopped").exists()
    node(recorded(3))  # a record for a rollback target does not change the start
    assert (node.enabled / "stopped").exists()
    node(recorded(4, start={}))
    start = json.loads((node.cluster / "start.json").read_text())
    assert (start["steps"], start["number"], start["release"]) == (STEPS, 4, 3)
    assert not (node.enabled / "stopped").exists()
