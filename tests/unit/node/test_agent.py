"""Changes by the agent on a node, step by step, and its refusals."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkcluster.hosts.local import LocalHost
from sparkcluster.hosts.program import call
from sparkcluster.node import agent, common

STUBBORN = "trap '' TERM; echo up; while :; do sleep 0.05; done"


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def leased(state):
    """This process holds the lease of cluster ``atlas``, with epoch 7."""
    directory = Path(common.cluster_dir(str(state), "atlas"))
    lock = common.try_lock(str(directory / "lease.lock"))
    assert lock is not None
    common.write_atomically(str(directory / "lease.json"), b'{"epoch": 7, "operator": "ann@desk", "granted": true}')
    with lock:
        yield directory


@pytest.fixture
def change(state, leased):
    """Runs steps; returns the agent's answer."""

    def do(*steps, **request):
        asked = {"state_dir": str(state), "cluster": "atlas", "epoch": 7, "steps": list(steps), **request}
        return agent.main(asked, None)

    return do


@pytest.fixture
def process(state, leased):
    """Starts a rank as a process, by an agent that exits as on a node; the rank ends with the test."""
    started = []

    def change(step):
        asked = {"state_dir": str(state), "cluster": "atlas", "epoch": 7, "steps": [step]}
        return call(LocalHost("spark-1"), "agent", asked, answer=dict)

    def start(script, *, plan="p1", name="rank", **step):
        directory = leased / "ranks" / name
        answer = change(
            {
                "do": "start-process",
                "name": name,
                "argv": ["/bin/sh", "-c", script],
                "rank_dir": str(directory),
                "env": {},
                "labels": {"io.sparkcluster.plan": plan},
                **step,
            }
        )
        started.append(str(directory))
        assert answer == {"results": [{}]}
        return directory, json.loads((directory / "rank.json").read_text())

    yield start
    for directory in started:
        agent.end_process(directory, grace_s=0)  # not by its PID, which another process may have by now


def until(condition, limit_s=60):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.01)


# ------------------------------------------------------------------------------------------------ the lease


def test_a_change_superseded_by_a_later_one_is_refused(change, state):
    late = {"do": "put", "path": str(state / "x"), "content": "x"}
    assert change(order=2) == {"results": []}
    assert change(late, order=1) == {"refused": "a later change of the same operator was applied before this one"}
    assert not (state / "x").exists()
    assert "results" in change(late, order=3)


def test_a_lease_whose_record_was_lost_starts_with_a_new_epoch(change, leased):
    (leased / "lease-change.lock").write_text("57 3")
    assert change(order=1) == {"results": []}


# ------------------------------------------------------------------------------------------------ files


def test_put_is_atomic_and_sets_the_mode_before_the_first_byte(change, state, monkeypatch):
    path = state / "a" / "secrets.env"
    change({"do": "put", "path": str(path), "content": "KEY=1\n", "mode": 0o600})
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("KEY=1\n", 0o600)
    seen = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (seen.append(Path(old).stat().st_mode), replace(old, new)))
    change({"do": "put", "path": str(path), "content": "KEY=2\n"})
    assert path.read_text() == "KEY=2\n"
    assert [stat.S_IMODE(mode) for mode in seen] == [0o600]


@pytest.mark.parametrize("path", ["{tmp}/outside", "{state}", "{state}/../outside", "{state}/link/inner"])
def test_delete_refuses_paths_outside_of_the_state_directory(change, state, tmp_path, path):
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (state / "link").symlink_to(outside)
    answer = change({"do": "delete", "path": path.format(tmp=tmp_path, state=state)})
    assert "is outside of" in answer["failed"]["message"]
    assert (outside / "inner").is_dir()
    assert state.is_dir()


def test_delete_removes_a_link_and_not_its_target(change, state, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (state / "link").symlink_to(outside)
    assert change({"do": "delete", "path": str(state / "link")}) == {"results": [{}]}
    assert not os.path.lexists(state / "link")
    assert outside.is_dir()


def test_steps_stop_at_the_first_that_fails(change, state):
    steps = [
        {"do": "put", "path": str(state / "one"), "content": ""},
        {"do": "delete", "path": "/etc"},
        {"do": "put", "path": str(state / "three"), "content": ""},
    ]
    assert change(*steps)["failed"]["step"] == "delete"
    assert (state / "one").exists()
    assert not (state / "three").exists()


# ------------------------------------------------------------------------------------------------ processes


def test_a_process_starts_once_and_its_exit_code_is_recorded(process):
    directory, _ = process("echo $ANSWER; exit 3", env={"ANSWER": "42"})
    until((directory / "exit").exists)
    assert (directory / "exit").read_text() == "3\n"
    assert (directory / "log").read_text() == "42\n"


def test_a_process_gets_secrets_only_by_file(process, leased):
    file = leased / "secrets.env"
    common.write_atomically(str(file), b"KEY=s3cr3t=with=equals\n")
    directory, started = process("echo $KEY; exec sleep 60", env_file=str(file))
    until(lambda: (directory / "log").read_text() == "s3cr3t=with=equals\n")
    for pid in agent.session_members(started["pid"]):
        assert b"s3cr3t" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert "s3cr3t" not in (directory / "rank.json").read_text()


def stop(directory, grace_s):
    return {"do": "stop", "containers": [], "processes": [str(directory)], "grace_s": grace_s}


def test_stop_ends_the_complete_session_if_necessary_by_force(process, change):
    directory, started = process(f"sh -c '{STUBBORN.replace(chr(39), chr(34))}' & {STUBBORN}")
    until(lambda: (directory / "log").read_text().count("up") == 2)
    assert change(stop(directory, 0.5)) == {"results": [{}]}
    assert agent.session_members(started["pid"]) == {}
    assert not (directory / "rank.json").exists()
    assert change(stop(directory, 0.5)) == {"results": [{}]}


def test_a_process_with_a_reused_pid_is_not_killed(change, leased):
    directory = leased / "ranks" / "old"
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        record = {"name": "old", "pid": stranger.pid, "start_ticks": 1, "labels": {}}
        common.write_atomically(str(directory / "rank.json"), json.dumps(record).encode())
        assert change(stop(directory, 0.2)) == {"results": [{}]}
        assert stranger.poll() is None
        assert not (directory / "rank.json").exists()
        stranger.kill()


# ------------------------------------------------------------------------------------------------ containers


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A ``docker`` with one container defined by the files ``state`` and ``plan``; ``told`` has its arguments."""
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "docker").write_text(
        f"""#!/bin/sh
cd {directory}
echo "$*" >> told
case $1 in
run) [ ! -e broken ] || {{ cat broken >&2; exit 125; }}; echo 2;;
rm) [ ! -e stuck ] || {{ echo "Error: driver failed to remove" >&2; exit 1; }}; rm -f state;;
esac
"""
    )
    (directory / "docker").chmod(0o755)
    (directory / "told").write_text("")
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    return directory


def start_container(**roots):
    argv = ["docker", "run", "--name", "x", "image"]
    return {"do": "start-container", "name": "x", "argv": argv, "roots": roots, "rank_dir": "~/rank"}


@pytest.fixture
def places(tmp_path):
    """A hub with a repository on another disk, leftovers of a container, and the user's directories and links."""
    home, disk = tmp_path / "home", tmp_path / "disk"
    for directory in ("home/.ssh", "home/hub", "disk/models--m/blobs", "disk/models--m/snapshots/c", "disk/weights"):
        (tmp_path / directory).mkdir(parents=True)
    repository = home / "hub/models--m"
    repository.symlink_to(disk / "models--m")
    (repository / "blobs/1").write_text("{}")
    (repository / "snapshots/c/config.json").symlink_to("../../blobs/1")
    (home / "weights").symlink_to(disk / "weights")
    for name, target in (("keys", home / ".ssh"), ("all", "/"), ("up", "../.."), ("chain", "keys"), ("loop", "loop")):
        (repository / name).symlink_to(target)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(repository / "docker"))
        yield tmp_path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("keys", "leads to {home}/.ssh, outside of {home}/hub/models--m"),
        ("keys/id_ed25519", "leads to {home}/.ssh/id_ed25519, outside of"),
        ("chain", "leads to {home}/.ssh, outside of"),
        ("all", "leads to /, outside of"),
        ("all/var/run", "outside of"),
        ("up", "outside of"),
        ("blobs/../../models--m-x", "outside of"),
        ("docker", "is neither a directory nor a file"),
        ("loop", "is neither a directory nor a file"),
        ("missing", "No such file or directory"),
    ],
)
def test_a_link_left_by_a_container_leads_to_no_other_directory_of_the_node(change, docker, places, name, message):
    home = places / "home"
    source = f"{home}/hub/models--m/{name}"
    answer = change(start_container(**{source: f"{home}/hub/models--m"}))
    assert message.format(home=home) in answer["failed"]["message"]
    if "outside" in message:
        assert f"namei -l {source}" in answer["failed"]["message"]
    assert "run" not in (docker / "told").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_link_that_the_nodes_user_cannot_see_is_not_mistaken_for_a_directory(places):
    """Docker follows it as root."""
    hidden = places / "disk/models--m/hidden"
    hidden.mkdir(mode=0o700)
    (hidden / "x").symlink_to("/")
    for directory in (places, *places.parents[:2]):
        directory.chmod(0o755)
    script = (
        f"import os; from sparkcluster.node import agent; os.setuid(65534); "
        f"agent.stay_inside({str(hidden / 'x')!r}, {str(places / 'disk/models--m')!r})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "PermissionError" in done.stderr


def test_the_error_of_docker_run_is_forwarded(change, docker):
    (docker / "broken").write_text("Error: could not select device driver\n")
    answer = change(start_container())
    assert answer["failed"] == {"step": "start-container", "message": "Error: could not select device driver"}


def test_containers_stop_within_their_grace_period_and_missing_ones_are_ignored(change, docker):
    step = {"do": "stop", "containers": ["x", "y"], "processes": [], "grace_s": 3}
    assert change(step) == {"results": [{}]}
    told = (docker / "told").read_text()
    assert "stop --time 3 x" in told
    assert "rm --force --volumes y" in told


def test_a_shared_directory_is_writable_by_any_user_inside_a_private_one(tmp_path):
    cache = tmp_path / "caches" / "image" / "playbook" / "vllm"
    agent.make_directory({}, {"path": str(cache), "shared": True})
    assert stat.S_IMODE(cache.stat().st_mode) == 0o1777
    assert stat.S_IMODE(cache.parent.stat().st_mode) == 0o700
    agent.make_directory({}, {"path": str(cache), "shared": True})
    plain = tmp_path / "plain"
    agent.make_directory({}, {"path": str(plain)})
    assert not stat.S_IMODE(plain.stat().st_mode) & stat.S_IWOTH
