"""The rank that failed first according to a log."""

from __future__ import annotations

import pytest

from sparkcluster.engines.causes import failed_rank
from sparkcluster.engines.vllm import ENGINE
from sparkcluster.runtime.watching import RankReport
from tests.unit import watch_events

MEMBERS = ["192.168.177.11", "192.168.177.12"]
HEAD = "(EngineCore pid=21) ERROR 11-21 04:13:03 [core.py:1510] "


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("ERROR [ray_executor_v2.py:522] RayWorkerProc rank=[1] died unexpectedly, shutting down executor.", 1),
        ("ERROR [multiproc_executor.py:230] Worker proc VllmWorker-1 died unexpectedly, shutting down", 1),
        (HEAD + "\tip: 192.168.177.12", 1),
        ("RayTaskError(ValueError): ray::RayWorkerWrapper.execute_method() (pid=13, ip=192.168.177.12, actor_id=a)", 1),
        (HEAD + "Worker 0 failed: CUDA out of memory", 0),
        ("RayWorkerProc rank=[7] died unexpectedly", None),
        ("(RayWorkerProc pid=13, ip=192.168.177.12) INFO Starting to load model", None),
    ],
)
def test_a_log_line_names_its_rank(line, rank):
    assert failed_rank(ENGINE, ["something before", line, "something after"], MEMBERS) == rank


def died(two, node, code):
    return watch_events.tick(node, {two.rank(node): RankReport(state="exited", exit_code=code)})


def test_the_worker_whose_failure_the_head_reports_is_named(launch, two):
    """With Ray the worker's container stays alive; its failure is only in the head's log."""
    words = (
        "Worker 1 failed: Cannot find any model weights with `/m`",
        "RuntimeError: Engine core initialization failed",
    )
    launch.feed(watch_events.lines("alpha", two.rank("alpha"), words), 110)
    launch.feed(died(two, "alpha", 1), 110)
    failure = launch.failure(112)
    assert failure.node == "beta"
    assert (
        failure.message
        == "the rank on beta failed, according to the log of alpha: the model's files are not on that node"
    )
    assert failure.log == words


def test_a_killed_rank_is_named_before_ranks_that_report_a_dead_peer(launch, two):
    words = ("RayWorkerProc rank=[1] died unexpectedly", "RuntimeError: Engine core initialization failed")
    launch.feed(watch_events.lines("alpha", two.rank("alpha"), words), 110)
    launch.feed(died(two, "alpha", 1), 110)
    launch.feed(died(two, "beta", 137), 111)
    failure = launch.failure(112)
    assert failure.node == "beta"
    assert "SIGKILL" in failure.message
