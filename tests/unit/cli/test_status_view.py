"""The live view of a cluster: what moves, within the width of the terminal, whatever a node reports."""

from __future__ import annotations

import pytest

from sparkcluster.cli.status_view import lines
from sparkcluster.facts.base import Unread
from sparkcluster.facts.running import Observation
from sparkcluster.inspect.live import History
from sparkcluster.plan.records import cluster_ranks


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
    """``shown(width, encoding, *readings)`` of two nodes, the second of which went away."""

    def run(width, encoding, *readings):
        one = world()
        one.run(one.plan(3))
        present, history = cluster_ranks("atlas", one.facts), History()
        for each in readings:
            history.add({"alpha": each, "beta": Unread(unread="beta did not answer within 4 s")}, present)
        document = {
            "cluster": "atlas", "state": "serving", "release": 3, "model": "Qwen/Qwen3-8B", "next": "sparkcluster ask x",
            "nodes": [{"name": "alpha"}, {"name": "beta"}, {"name": "gamma"}],
            "groups": [{"name": "default", "state": "serving", "uptime_s": 8000.0, "why": None}],
        }  # fmt: skip
        return lines(document, history, width=width, encoding=encoding)

    return run


def test_what_moves_is_shown_in_figures_bars_and_sparklines(shown):
    found = shown(80, "utf-8", reading(0, 10**9), reading(40, 2 * 10**9), reading(90, 4 * 10**9))
    assert found == [
        "atlas: serving, release 3",
        "  Qwen/Qwen3-8B",
        "  default: serving, up 2 h 13 min",
        "    requests  2 running, 1 waiting",
        "    KV cache  ████░░░░░░  38 %",
        "    tokens/s     40.0  ███",
        "",
        "NODE    MEMORY                   GPU          RDMA SENT",
        "alpha   ████████░░ 100/128 GB     87 % 45 W     32.0 Gb/s  ▃▅█  sockets 0.2",
        "beta    beta did not answer within 4 s",
        "gamma   -",
        "",
        "next: sparkcluster ask x",
    ]


def test_a_narrow_terminal_and_one_without_blocks(shown):
    found = shown(40, "ascii", *[reading(0, 10**9)] * 100)
    assert max(map(len, found)) == 40
    assert "".join(found).isascii()
