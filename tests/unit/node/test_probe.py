"""The complete probe: it runs from a bundle, never fails as a whole, and never exceeds its time limit."""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkcluster.facts.base import Unread
from sparkcluster.facts.parse import parse
from sparkcluster.hosts.program import command
from sparkcluster.node import common, interpreter, network, probe, storage, system
from sparkcluster.node import machine as machines
from sparkcluster.node.machine import Machine, Unreadable

REQUEST = {
    "cluster": "pair",
    "state_dir": "~/state",
    "hf_home": "~/hf",
    "image": None,
    "model": None,
    "runtime": "docker",
    "python": None,
}


def test_the_probe_runs_from_its_bundle_and_returns_facts_of_this_machine() -> None:
    argv, stdin = command("probe", {**REQUEST, "model": {"id": "a/b", "revision": None, "path": None}})
    done = subprocess.run(argv, input=stdin, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    facts = parse("here", json.loads(done.stdout))
    assert facts.memory.total_bytes > 0  # type: ignore[union-attr]
    assert facts.weights.path is None  # type: ignore[union-attr]
    assert not done.stderr


def test_an_old_python_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = json.loads(command("probe", REQUEST)[1])
    monkeypatch.setattr(sys, "version_info", (3, 8, 10))
    with pytest.raises(SystemExit, match=r"^its python3 is \S+, but 3\.10 or newer is required$"):
        exec(boot["start"], {"boot": boot, "sys": sys, "json": json})


def test_a_crashing_reader_loses_only_its_reading(make_machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_machine: Machine) -> None:
        raise ZeroDivisionError("never seen before")

    for name in ("interfaces", "hcas", "listeners"):
        monkeypatch.setattr(network, name, crash)
    machine = make_machine("founders-p1")
    facts = parse("spark", probe.main(machine.case["request"], machine=machine))
    assert facts.interfaces == Unread(unread="ZeroDivisionError: never seen before")
    assert facts.docker.version == "29.1.3"  # type: ignore[union-attr]


def test_every_reading_may_fail_without_losing_the_others(make_machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document with any unread part has the right shape."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Unreadable("permission denied: /x")

    machine = make_machine("founders-p1")
    for name in ("bytes", "names", "run", "docker_document", "addresses", "space"):
        monkeypatch.setattr(machine, name, refuse)
    facts = parse("spark", probe.main(machine.case["request"], machine=machine))
    assert facts.memory == Unread(unread="permission denied: /x")
    assert facts.disks == Unread(unread="permission denied: /x")
    assert facts.infiniband_devices is False


def test_a_hanging_reading_is_abandoned(make_machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "LIMIT_S", 0.2)
    monkeypatch.setattr(machines, "GRACE_S", 0.0)
    release = threading.Event()
    machine = make_machine("founders-p1")
    monkeypatch.setattr(storage, "weights", lambda *_: release.wait(30))
    facts = parse("spark", probe.main(machine.case["request"], machine=machine))
    release.set()
    assert facts.weights == Unread(unread="no answer within 0.2 s")


def test_a_held_lease_is_reported_and_not_taken(make_machine: Any) -> None:
    machine = make_machine("serving")
    state_dir = "/home/nvidia/.local/state/sparkcluster"
    path = Path(machine.at(state_dir)) / "clusters/pair/lease.lock"
    with path.open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert storage.lease(machine, state_dir, "pair") == {"epoch": 7, "held": True, "operator": "ann@desk"}
    with path.open("rb") as next_one:
        fcntl.flock(next_one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(next_one, fcntl.LOCK_UN)
    assert storage.lease(machine, state_dir, "pair")["held"] is False  # type: ignore[index]
    assert storage.lease(machine, state_dir, "unknown") is None


def test_the_staging_lease_is_read_in_addition_to_the_cluster_lease(make_machine: Any) -> None:
    machine = make_machine({"files": {"state/clusters/pair/staging.json": {"epoch": 2, "operator": "ann"}}})
    assert storage.lease(machine, "/state", "pair") is None
    assert storage.lease(machine, "/state", "pair", "staging") == {"epoch": 2, "held": False, "operator": "ann"}


@pytest.mark.parametrize("folder", ["builds", "downloads", "pulls", "clusters/pair/staging"])
def test_a_job_that_outlives_its_operator_is_reported_to_its_cluster(make_machine: Any, folder: str) -> None:
    lease, job = {"epoch": 2, "operator": "ann"}, f"state/{folder}/0123"
    leases = {f"state/clusters/{cluster}/staging.json": lease for cluster in ("pair", "other")}
    machine = make_machine({"files": {**leases, f"{job}/state.json": {"cluster": "pair"}, f"{job}/lock": ""}})
    with Path(machine.at(f"/{job}/lock")).open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert storage.staging(machine, "/state", "pair") == {**lease, "held": False, "at_work": True}
        assert storage.staging(machine, "/state", "other") == {**lease, "held": False, "at_work": False}
    assert storage.staging(machine, "/state", "pair") == {**lease, "held": False, "at_work": False}


def test_ranks_of_another_cluster_are_read_with_their_release(make_machine: Any) -> None:
    lease = {"epoch": 2, "operator": "ann"}
    machine = make_machine({"files": {"state/clusters/other/lease.json": lease}})
    answer = probe.main({**REQUEST, "state_dir": "/state", "also": [{"cluster": "other"}]}, machine=machine)
    assert answer["lease"] is None
    assert answer["also"][0]["lease"] == {**lease, "held": False}
    assert {"switch", "enabled", "staging", "release"} <= answer["also"][0].keys()


TEXT = st.text(max_size=200)


@given(TEXT)
def test_file_parsers_return_a_value_or_a_reason(text: str) -> None:
    """No text printed by a kernel, an OEM or a driver causes a traceback."""
    for parser in (system.os_release, system.dgx_release, system.meminfo):
        parser(text)
    with contextlib.suppress(Unreadable):
        interpreter.parse(text)


def test_a_zombie_is_not_a_running_rank(make_machine: Any) -> None:
    machine = make_machine({"files": {"proc/7/stat": "7 (x) Z 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0"}})
    assert common.ticks_of(machine.text("/proc/7/stat")) is None
