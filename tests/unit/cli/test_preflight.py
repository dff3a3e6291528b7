"""``sparkcluster preflight`` for its user: report, JSON, exit codes; the nodes are scripted."""

from __future__ import annotations

import json
import os

import pytest

from sparkcluster.cli import common, preflight, setup
from sparkcluster.cli.main import guarded
from sparkcluster.errors import HostTimeout
from sparkcluster.facts.base import Unread
from sparkcluster.facts.between import Measured, Rate
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet

INVENTORY = """
cluster: atlas
nodes:
  - {name: alpha, host: 192.168.86.11}
  - {name: beta, host: 192.168.86.12}
playbook: gpt-oss-120b
"""
RAILS = ("enp1s0f0np0", "enP2p1s0f0np0")


@pytest.fixture
def asked(tmp_path, monkeypatch, spark):
    """``asked(*words, failing=…, beta={facts})``: exit code of a preflight; ``asked.hosts`` are the contacted nodes."""
    path = tmp_path / "atlas.yaml"
    path.write_text(INVENTORY)
    monkeypatch.setenv("SPARKCLUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words, failing=(), beta=None):
        run.hosts = {}
        for number, name in ((11, "alpha"), (12, "beta")):
            host = run.hosts[name] = FakeHost(name)
            facts = spark(
                {RAILS[0]: f"192.168.177.{number}/24", RAILS[1]: f"192.168.178.{number}/24"},
                management=f"192.168.86.{number}/24",
                **(beta or {} if name == "beta" else {}),
            )
            if name in failing:
                error = HostTimeout(f"{name}: sshd said nothing for 10 s", node=name, hint=f"ssh -v {name} true")
                host.run = lambda *_, error=error, **__: (_ for _ in ()).throw(error)
                host.stream = host.run
            else:
                host.program("probe", json.loads(facts.model_dump_json()))
        monkeypatch.setattr(common, "fleet_of", lambda *_: Fleet(run.hosts))
        return guarded(["preflight", str(path), *map(str, words)])

    run.inventory = path
    return run


def test_an_error_exits_1_and_is_shown_under_its_node_with_the_command_to_type(asked, capsys):
    assert asked(beta={"infiniband_devices": False}) == 1
    out = capsys.readouterr().out
    lines = out.splitlines()
    at = lines.index("beta")
    assert lines[at + 1].startswith("  error: NET-010 ")
    assert "    hint: sudo modprobe -a ib_uverbs rdma_ucm" in lines
    assert "✗ NET-010" in out
    assert lines[-1].startswith("not ready: 1 error on beta")


def test_the_next_command(asked, capsys):
    assert asked() == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"next: sparkcluster up {asked.inventory}"
    assert asked(beta={"infiniband_devices": False}) == 1
    assert (
        capsys.readouterr().err.splitlines()[-1]
        == f"next: fix the errors, then sparkcluster preflight {asked.inventory}"
    )


def test_fix_runs_only_the_steps_of_the_findings(asked, monkeypatch):
    """With the flags of preflight, which has no --only, --node or --undo."""
    runs = []
    monkeypatch.setattr(setup, "on_nodes", lambda spec, args: runs.append((spec.inventory.cluster, args)) or 0)
    refused = Unread(unread="permission denied: /var/run/docker.sock")
    assert asked("--fix", "--yes", "-v", beta={"docker": refused}) == 0
    ((cluster, args),) = runs
    assert (cluster, args.inventory, args.only, args.yes, args.verbose) == (
        *("atlas", asked.inventory, ["docker-group"], True, True),
    )
    assert [args.node, args.options, args.undo, args.show, args.dry_run] == [[], [], False, False, False]


def test_without_an_answer_no_step_is_marked_as_done(asked, capsys):
    assert asked(failing=["alpha", "beta"]) == 1
    steps = capsys.readouterr().err
    assert "✗ connect" in steps
    assert "✓" not in steps


def test_a_node_that_does_not_answer_has_one_finding_and_is_marked_in_the_drawing(asked, capsys):
    assert asked(failing=["beta"]) == 1
    out = capsys.readouterr().out
    assert out.count("SSH-003") == 2  # in the drawing and as a finding
    assert "did not answer" in out
    assert out.splitlines()[-1].startswith("not ready: 1 error on beta")


@pytest.mark.parametrize("place", ["missing/bundle.tar.gz", "pipe"])
def test_an_unwritable_bundle_is_an_error_before_any_node_is_contacted(place, asked, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert asked("--bundle", tmp_path / place) == 2
    err = capsys.readouterr().err
    assert "error: " in err
    assert "hint: " in err
    assert not any(host.calls for host in asked.hosts.values())


def test_measurements_are_one_row_per_rail_with_the_healthy_range(capsys):
    pair, rail = ("alpha", "beta"), "192.168.177.0/24"
    both = [pair, pair[::-1]]
    tcp = [
        Rate("tcp", ends, "enp1s0f0np0", figure, subnet=rail) for ends, figure in zip(both, (20.1, 23.8), strict=True)
    ]
    rdma = [
        Rate("rdma", ends, "rocep1s0f0", figure, subnet=rail) for ends, figure in zip(both, (108.5, 13.2), strict=True)
    ]
    whole = Rate("rdma-both", pair, "both", None)
    preflight.show_rates(Measured((*tcp, *rdma, whole), skipped={"collective": "atlas serves"}))
    assert capsys.readouterr().out.splitlines() == [
        "",
        "NODES        RAIL              TCP          RDMA",
        "alpha, beta  192.168.177.0/24  20.1 / 23.8  108.5 ✓ / 13.2 ✗",
        "alpha, beta  both twins                     no result ✗",
        "in Gb/s, each way; healthy: RDMA 92 or more, both twins of a port 190 or more",
        "not measured: all-gather (atlas serves)",
    ]
