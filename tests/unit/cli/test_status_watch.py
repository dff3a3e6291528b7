"""The live view of a cluster: what moves, within the width of the terminal, whatever a node reports."""

from __future__ import annotations

import fcntl
import io
import struct
import termios

import pytest
from rich.console import Console

from sparkcluster.cli.status_watch import view
from sparkcluster.facts.base import Unread
from sparkcluster.facts.running import Observation
from sparkcluster.plan.release_record import cluster_ranks
from tests.unit.on_terminal import COMMAND, OnTerminal

WATCH = (
    COMMAND
    + """
import contextlib
from types import SimpleNamespace
from sparkcluster.cli import common, status_watch
from sparkcluster.hosts.fleet import Calls
from sparkcluster.inspect import cluster, observing, status
from sparkcluster.plan.release_record import ClusterRanks
group = {"name": "default", "state": "serving", "uptime_s": 44.0, "endpoint": None, "why": None, "warning": None}
document = {"cluster": "atlas", "state": "serving", "why": None, "release": 3, "model": "m", "next": "", "nodes": [],
            "groups": [group]}
cluster.see = lambda *_: SimpleNamespace(facts={}, ranks=ClusterRanks({}, {}))
status.status = lambda *_: document
observing.begin_observing = lambda *_, **__: Calls(lambda _: None, {})
common.load_spec = lambda _: SimpleNamespace(inventory=SimpleNamespace(cluster="atlas", nodes=[None]))
common.connect_fleet = lambda *_: contextlib.nullcontext()
as_command(lambda: status_watch.run(SimpleNamespace(json=False, inventory="atlas.yaml")))
"""
)


def reading(generated: float, sent: int, **more: object) -> Observation:
    return Observation.model_validate(
        {
            "ranks": [],
            "gpus": [{"at_s": 0.0, "utilization_percent": 5.0}, {"at_s": 1.0, "utilization_percent": 87.0, "power_w": 45.2}],
            "memory": {
                "total_bytes": 128 * 10**9, "free_bytes": 0, "available_bytes": 28 * 10**9, "cached_bytes": 0,
                "swap_total_bytes": 0, "swap_free_bytes": 0,
            },
            "counters": [
                {"at_s": 0.0, "generated": generated, "running": 1.0},
                {"at_s": 1.0, "generated": generated + 40, "running": 2.0, "waiting": 1.0, "kv_cache": 0.38},
            ],
            "traffic": [
                {"at_s": 0.0, "rdma_bytes": {"a": 0, "b": 5 * 10**9}, "socket_bytes": {"x": 0}},
                {"at_s": 1.0, "rdma_bytes": {"a": sent, "b": 0}, "socket_bytes": {"x": 25_000_000}},
            ],
            **more,
        }
    )  # fmt: skip


@pytest.fixture
def shown(world):
    """``shown(width, reading)`` of two nodes, the second of which went away."""

    def run(width, reading):
        one = world()
        one.run(one.plan(3))
        seen = {"alpha": reading, "beta": Unread(unread="beta did not answer within 4 s")}
        document = {
            "cluster": "atlas", "state": "serving", "why": None, "release": 3, "model": "Qwen/Qwen3-8B",
            "nodes": [{"name": "alpha"}, {"name": "beta"}, {"name": "gamma"}],
            "groups": [{"name": "default", "state": "serving", "uptime_s": 8000.0, "why": None, "endpoint": "http://a/v1"}],
        }  # fmt: skip
        console = Console(file=io.StringIO(), width=width)
        console.print(view(document, seen, cluster_ranks("atlas", one.facts), 40.0))
        return [line.rstrip() for line in console.file.getvalue().splitlines()]

    return run


def test_what_moves_is_shown_in_figures(shown):
    found = shown(80, reading(90, 4 * 10**9))
    assert found == [
        "atlas  ● serving   release 3 for 2 h 14 min",
        "  Qwen/Qwen3-8B at http://a/v1",
        "  2 running, 1 waiting, 40.0 tokens/s, KV cache 38 %",
        "",
        "NODE   MEMORY                          GPU         RDMA SENT    SOCKETS",
        "alpha  100.0 of 128.0 GB                87 % 45 W    32.0 Gb/s     0.2 Gb/s",
        "beta   beta did not answer within 4 s",
        "gamma  -",
        "",
        "q ends this view, and nothing else",
    ]


def test_a_narrow_terminal(shown):
    assert max(map(len, shown(40, reading(0, 10**9)))) <= 40


def test_it_has_the_screen_for_itself_counts_on_and_ends_with_q():
    with OnTerminal(WATCH) as terminal:
        terminal.until("\x1b[?1049h")
        terminal.until("for 45 s")
        fcntl.ioctl(terminal.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
        terminal.type("xyz")
        terminal.until("for 46 s")
        assert not terminal.echo
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.echo
        assert "xyz" not in terminal.shown


def test_ctrl_c_ends_it_and_keys_are_echoed_again():
    with OnTerminal(WATCH) as terminal:
        terminal.until("for 44 s")
        terminal.type("\x03")
        terminal.end()
        assert terminal.echo
        assert terminal.shown.rstrip().endswith("\x1b[?1049l")
