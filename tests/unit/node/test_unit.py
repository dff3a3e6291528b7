"""The systemd unit of a guard."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from sparkcluster.node import agent, common, enabled, unit
from sparkcluster.node.programs import Failed

NAME = "sparkcluster-atlas.service"


@pytest.mark.parametrize("user", ["root", ""])
def test_systemd_accepts_the_unit(tmp_path, user):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    directory = tmp_path / "with blanks/100%/$HOME/enabled"
    directory.mkdir(parents=True)
    path = tmp_path / NAME
    path.write_text(unit.text(str(directory), "atlas", user))
    manager = [] if user else ["--user"]
    done = subprocess.run(
        ["systemd-analyze", *manager, "verify", path], capture_output=True, text=True, check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(path) not in done.stderr  # what is said of other units of this machine is not ours
    assert NAME not in done.stderr


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    """A machine with systemd whose programs write their arguments; ``systemd(root, sudo)`` is the list of them."""
    for name in ("booted", "system", "bin"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(unit, "BOOTED", str(tmp_path / "booted"))
    monkeypatch.setattr(unit, "SYSTEM", str(tmp_path / "system"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    log = tmp_path / "log"
    log.touch()
    for name in ("systemctl", "loginctl"):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\necho {name} "$*" >> {log}\n')

    def as_user(*, root, sudo):
        script = f'#!/bin/sh\nshift\necho sudo "$*" >> {log}\nexec "$@"\n' if sudo else "#!/bin/sh\nexit 1\n"
        (tmp_path / "bin" / "sudo").write_text(script)
        for path in (tmp_path / "bin").iterdir():
            path.chmod(0o755)
        monkeypatch.setattr(os, "geteuid", lambda: 0 if root else os.getuid() + 1)
        monkeypatch.setattr(unit.pwd, "getpwuid", lambda _: type("User", (), {"pw_name": "nvidia"}))
        return lambda: log.read_text().splitlines()

    return as_user


@pytest.mark.parametrize(("root", "sudo"), [(True, False), (False, True)])
def test_root_and_who_may_use_sudo_get_a_system_unit(tmp_path, systemd, root, sudo):
    said = systemd(root=root, sudo=sudo)
    found = unit.install(str(tmp_path / "clusters/atlas/enabled"), NAME)
    assert found["unit"] == str(tmp_path / "system" / NAME)
    text = (tmp_path / "system" / NAME).read_text()
    assert "User=nvidia\n" in text
    assert "KillMode=process\n" in text  # ranks stay when the guard ends
    steps = [line for line in said() if line.startswith("systemctl")]
    assert steps == ["systemctl daemon-reload", f"systemctl enable {NAME}", f"systemctl restart {NAME}"]
    assert any("sudo systemctl enable" in line for line in said()) is sudo
    unit.remove(str(tmp_path / "clusters/atlas/enabled"), NAME)
    assert not (tmp_path / "system" / NAME).exists()
    assert f"systemctl disable {NAME}" in said()


def test_the_unit_of_another_cluster_of_this_name_stays(tmp_path, systemd):
    systemd(root=True, sudo=False)
    unit.install(str(tmp_path / "clusters/atlas/enabled"), NAME)
    other = str(tmp_path / "other/clusters/atlas/enabled")
    (tmp_path / "other/clusters/atlas/enabled").mkdir(parents=True)
    unit.remove(other, NAME)
    assert (tmp_path / "system" / NAME).exists()
    with pytest.raises(Failed, match="is of another cluster of this name"):
        unit.install(other, NAME)


def test_who_may_not_gets_a_user_unit_that_outlives_the_login(tmp_path, systemd):
    said = systemd(root=False, sudo=False)
    found = unit.install(str(tmp_path / "clusters/atlas/enabled"), NAME)
    assert found["unit"] == str(tmp_path / "config/systemd/user" / NAME)
    assert "User=" not in (tmp_path / "config/systemd/user" / NAME).read_text()
    assert said() == [
        "loginctl enable-linger nvidia",
        "systemctl --user daemon-reload",
        f"systemctl --user enable {NAME}",
        f"systemctl --user restart {NAME}",
    ]
    unit.remove(str(tmp_path / "clusters/atlas/enabled"), NAME)
    assert not (tmp_path / "config/systemd/user" / NAME).exists()


@pytest.fixture
def node(tmp_path, monkeypatch):
    """``node(*steps)``: the answer of the agent under a lease; ``node.enabled`` is the directory."""
    monkeypatch.setattr(unit, "BOOTED", str(tmp_path / "not booted"))
    state = tmp_path / "state"
    lock_path, record, _ = common.lease_files(str(state), "atlas", "cluster")
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
    config = {"cluster": "atlas", "node": "alpha"}
    return {"do": "enable", "number": number, "program": "x", "token": "ab" * 32, "config": config, "unit": NAME}


STEPS = [{"do": "put"}]
START = {
    "group": "default", "head": False, "address": "127.0.0.2", "peers": {}, "ranks": [], "steps": STEPS, "ask": None,
    "ready_timeout_s": 60,
}  # fmt: skip


def test_enable_needs_the_release_that_this_node_has_recorded(node):
    assert "release 3" in node(enable(3))["failed"]["message"]
    node(recorded(3))  # by an older version
    assert "failed" in node(enable(3))
    node(recorded(3, start=START))
    assert "failed" in node(enable(2))
    assert not node.enabled.exists()
    assert "results" in node(enable(3))
    assert node.enabled.stat().st_mode & 0o777 == 0o700
    assert (node.enabled / "token").stat().st_mode & 0o777 == 0o600
    assert (node.enabled / "token").read_text() == "ab" * 32


def test_a_record_says_what_starts_and_the_next_one_of_another_group_keeps_it(node):
    node(recorded(3, start=START), enable(3), {"do": "stay-down"})
    (node.enabled / enabled.GAVE_UP_FILE).write_text("{}")
    start = json.loads((node.cluster / "start.json").read_text())
    assert (start["steps"], start["number"], start["epoch"]) == (STEPS, 3, 7)
    assert (node.enabled / "stopped").exists()
    node(recorded(3))  # that is recorded again for going back says nothing of what runs
    assert (node.enabled / "stopped").exists()
    node(recorded(4, start={}))
    start = json.loads((node.cluster / "start.json").read_text())
    assert (start["steps"], start["number"], start["release"]) == (STEPS, 4, 3)
    assert not (node.enabled / "stopped").exists()
    assert not (node.enabled / enabled.GAVE_UP_FILE).exists()
