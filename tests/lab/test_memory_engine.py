"""A worker of the real engine ends by itself, well within the time that it gets, though its head is gone."""

from __future__ import annotations

import time

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.full]


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab(2, engine="vllm")


def test_a_worker_whose_head_is_gone_ends_within_the_time_that_it_gets(lab, cli, ranks):
    """Ray would drain for 30 s, and then kill the engine's processes one second after it asked them to end."""
    cli("up", lab.inventory, timeout=300).ok()
    head, worker = lab.sparks
    ((head_rank, *_),) = ranks(lab)[head.name]
    ((worker_rank, *_),) = ranks(lab)[worker.name]
    head.run(["docker", "kill", head_rank])
    began = time.monotonic()
    worker.run(["docker", "stop", "--time", "30", worker_rank])
    assert time.monotonic() - began < 15
    code = worker.run(["docker", "inspect", "-f", "{{.State.ExitCode}}", worker_rank]).stdout.strip()
    assert code == "143", worker.run(["docker", "logs", "--tail", "40", worker_rank]).stdout
