"""``after_ready``: runs once, on this machine, after a verified change; its failure does not stop the cluster."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import pytest

from sparkcluster.errors import Interrupted
from sparkcluster.release import after_ready

from .conftest import FOUR, PAIRS, RecordingReport, up_once

TELL = [
    sys.executable,
    "-c",
    "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k == 'MY_KEY' or k[:12] == 'SPARKCLUSTER'}))",
]


@pytest.fixture
def after(up, tmp_path, monkeypatch):
    """``after(world)``: ``up`` with the commands of its inventory; returns the commands that ran."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_KEY", "mine")
    for name in [each for each in os.environ if each.startswith("SPARKCLUSTER")]:
        monkeypatch.delenv(name)

    def run(world):
        def both(fleet, spec, options, report):
            done = up_once(fleet, spec, options, report)
            run.recorded = len(up.recorded)
            return after_ready.run(spec, done, report)

        return up(world, command=both)

    return run


def tell_output(up):
    """The output of ``TELL``."""
    return [json.loads(line.split(": ", 1)[1]) for line in up.report.notes if "SPARKCLUSTER_MODEL" in line]


def test_commands_run_once_after_all_groups_are_recorded_and_not_without_a_change(after, up, world) -> None:
    cluster = world(FOUR, groups=PAIRS, after_ready=[TELL], api={"host": "management"})
    (ran,) = after(cluster)
    assert ran["problem"] is None
    assert after.recorded == 4  # on every node
    (seen,) = tell_output(up)
    first, second = seen.pop("SPARKCLUSTER_ENDPOINTS").split()
    assert first.endswith("/v1")
    assert second != first
    assert seen == {
        "SPARKCLUSTER_CLUSTER": "atlas",
        "SPARKCLUSTER_ENDPOINT": first,
        "SPARKCLUSTER_MODEL": cluster.spec.playbook.model_name,
        "SPARKCLUSTER_RELEASE": "1",
        "MY_KEY": "mine",
    }
    assert after(cluster) == []
    assert tell_output(up) == []


@pytest.mark.parametrize(
    ("command", "limit_s", "problem"),
    [
        ("sh -c 'echo why; exit 3'", 60, "exited with code 3"),
        ("no-such-program-anywhere", 60, "cannot be started: No such file or directory"),
        ("sh -c 'sleep 60 & wait'", 0.3, "took longer than 0.3 s (after_ready_timeout_s) and was stopped"),
    ],
)
def test_a_failing_command_is_a_warning_and_the_next_one_runs(after, up, world, command, limit_s, problem) -> None:
    cluster = world(after_ready=[command, "echo next"], after_ready_timeout_s=limit_s)
    first, second = after(cluster)
    assert (first["problem"], second["problem"]) == (problem, None)
    (warning,) = [line for line in up.report.notes if line.startswith("warning: after_ready")]
    assert problem in warning
    assert warning.endswith("release 1 serves")
    assert ("  sh: why" in up.report.notes) == ("why" in command)
    assert "  echo: next" in up.report.notes


def test_a_command_starts_in_the_directory_of_the_inventory_and_reads_no_input(after, up, world, tmp_path) -> None:
    script = tmp_path / "tell.sh"
    script.write_text("#!/bin/sh\npwd\ncat\n")
    script.chmod(0o755)
    (ran,) = after(world(after_ready=["./tell.sh"]))
    assert ran["problem"] is None
    assert f"  tell.sh: {tmp_path}" in up.report.notes


def test_ctrl_c_ends_the_command_and_shows_the_running_release(after, up, world, tmp_path) -> None:
    def press():
        until = time.monotonic() + 50
        while not (tmp_path / "pid").exists() and time.monotonic() < until:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    up.report = RecordingReport()
    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(Interrupted, match="interrupted; atlas serves release 1"):
        after(world(after_ready=["sh -c 'echo $$ > .pid; mv .pid pid; sleep 60'", "echo next"]))
    assert "  echo: next" not in up.report.notes
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
