"""Which rank of a group failed first, and why, from the logs and states of all ranks; the cases are data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.engines import engine
from sparkcluster.engines.causes import RankEnd, first_failure
from sparkcluster.engines.vllm import ENGINE

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "golden" / "logs" / "failures.json").read_text())
ADDRESSES = {"alpha": "192.168.177.11", "beta": "192.168.177.12"}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_cause_precedes_its_consequences_on_any_node(case: dict[str, Any]) -> None:
    found = first_failure(ENGINE, [RankEnd(address=ADDRESSES[rank["node"]], **rank) for rank in case["ranks"]])
    assert (found.node, found.reporter) == (case["node"], case["reporter"])
    assert found.cause is not None
    assert case["summary"] in found.cause.summary
    assert case["line"] in found.cause.line
    assert bool(case["line"]) == bool(found.cause.line)


def test_without_a_cause_the_rank_that_exited_first_is_named() -> None:
    ranks = [RankEnd("alpha", "a", ["x"], ended_at=2, exit_code=42), RankEnd("beta", "b", [], ended_at=1, exit_code=42)]
    found = first_failure(ENGINE, ranks)
    assert (found.node, found.cause) == ("beta", None)


def test_an_engine_that_sent_sigkill_to_itself_was_not_killed() -> None:
    """SGLang does so on every error (kill_process_tree), and a node whose scheduler was killed exits with 0."""
    lost = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:535] Connection closed by peer [{}]:29501"
    head = [
        lost.format(ADDRESSES["beta"]),
        "SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
    ]
    worker = ["Scheduler or DataParallelController 41 terminated with -9"]
    ranks = [
        RankEnd("alpha", ADDRESSES["alpha"], head, ended_at=1, exit_code=137),
        RankEnd("beta", ADDRESSES["beta"], worker, ended_at=2, exit_code=0),
    ]
    found = first_failure(engine("sglang"), ranks)
    assert (found.node, found.cause and found.cause.line) == ("beta", worker[0])
