"""Events in, verdict out, with a clock controlled by the test."""

from __future__ import annotations

import pytest

from sparkcluster.release.readiness import LAST_LINES_S, LINK_GRACE_S, Readiness
from sparkcluster.runtime.watching import RankReport
from tests.unit import watch_events

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.fixture
def tick(two):
    def make(node, state="running", *, links=None, listening=False, **reported):
        return watch_events.tick(
            node, {two.rank(node): RankReport(state=state, **reported)}, links=links, listening=listening
        )

    return make


def test_running_ranks_have_no_problem(launch, tick):
    for now in range(100, 2000, 2):
        launch.feed(tick("alpha"), now)
        launch.feed(tick("beta"), now)
    assert launch.failure(2000) is None
    assert not launch.ready


def test_the_recorded_memory_is_that_of_the_node_with_the_least_free_memory(launch, tick):
    launch.feed(watch_events.memory("alpha", 100 << 30, 30 << 30, 50 << 30), 110)
    launch.feed(watch_events.memory("beta", 100 << 30, 60 << 30, 40 << 30), 110)
    launch.feed(tick("beta"), 111)
    assert launch.taken == {"peak_gib": 70.0, "used_gib": 60.0}


@pytest.mark.parametrize("state", ["exited", "dead", "gone"])
def test_a_dead_rank_fails_the_launch_after_its_last_lines_are_read(launch, tick, two, state):
    launch.feed(tick("alpha"), 110)
    launch.feed(tick("beta", state, exit_code=1), 110)
    assert launch.failure(110 + LAST_LINES_S - 0.1) is None
    assert launch.dying
    launch.feed(
        watch_events.lines("beta", two.rank("beta"), ("RuntimeError: NCCL error: unhandled system error",)), 111
    )
    failure = launch.failure(110 + LAST_LINES_S)
    assert failure.node == "beta"
    assert failure.step == "start"
    assert "the rank on beta" in failure.message
    assert failure.hint
    assert failure.log == ("RuntimeError: NCCL error: unhandled system error",)


def test_the_rank_that_died_first_is_named_before_the_ranks_it_took_down(launch, tick, two):
    """The head notices the death of its worker first, and its own death is seen before the worker's."""
    launch.feed(tick("alpha", "exited", exit_code=0), 110)
    launch.feed(tick("beta", "exited", exit_code=1), 110.8)
    launch.feed(watch_events.lines("beta", two.rank("beta"), (OOM,)), 111)
    failure = launch.failure(112)
    assert failure.node == "beta"
    assert failure.log == (OOM,)


def test_the_line_of_the_cause_has_its_number_in_the_saved_log(launch, tick, two):
    lines = ("loading", OOM, "\x1b[31m" + OOM + "\x1b[0m ", "RuntimeError: Engine core initialization failed")
    launch.feed(watch_events.lines("beta", two.rank("beta"), lines), 110)
    launch.feed(tick("beta", "exited", exit_code=1), 110)
    reason = launch.failure(112).reason
    assert (reason.node, reason.number, reason.line) == ("beta", 3, OOM)


def test_a_cut_cable_is_named_before_the_ranks_that_died_of_it(launch, tick, two):
    """Also within the time in which a link may return."""
    closed = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [192.168.177.11]:39075"
    launch.feed(watch_events.lines("beta", two.rank("beta"), (closed,)), 110)
    launch.feed(tick("beta", "exited", exit_code=134, links={two.link("beta"): False}), 110)
    failure = launch.failure(110 + LAST_LINES_S)
    assert failure.message.startswith(f"beta has no carrier on {two.link('beta')}: the cable is out")
    assert failure.reason is None


def test_out_of_memory_is_detected_from_the_exit_code(launch, tick):
    launch.feed(tick("beta", "exited", exit_code=137, oom_killed=True), 110)
    failure = launch.failure(112)
    assert "memory ran out" in failure.message
    assert "exit code 137" in failure.message


def test_a_pulled_cable_is_reported_and_a_flapping_link_is_not(launch, tick, two):
    link = two.link("beta")
    launch.feed(tick("beta", links={link: False}), 110)
    assert launch.failure(110 + LINK_GRACE_S - 0.1) is None
    launch.feed(tick("beta", links={link: True}), 112)
    assert launch.failure(120) is None
    launch.feed(tick("beta", links={link: False}), 120)
    launch.feed(tick("beta", links={link: False}), 122)
    failure = launch.failure(120 + LINK_GRACE_S)
    assert (failure.node, link in failure.message, "cable" in failure.message) == ("beta", True, True)


def test_a_group_is_ready_when_its_head_accepts_connections_or_logs_so(launch, two):
    launch.feed(watch_events.tick("beta", {}, listening=True), 1)
    assert not launch.ready
    launch.feed(watch_events.lines("alpha", two.rank("alpha"), ("INFO:     Application startup complete.",)), 2)
    assert launch.ready
    listening = Readiness(two.plan, two.topology, now=0)
    listening.feed(watch_events.tick("alpha", {}, listening=True), 1)
    assert listening.ready


# ------------------------------------------------------------------------------------------- silence


def test_an_overdue_launch_shows_the_phase_of_each_rank(launch, two):
    launch.feed(
        watch_events.lines("alpha", two.rank("alpha"), ("[sparkcluster] phase=ray-wait 1/2 missing 192.168.177.12",)),
        699,
    )
    launch.feed(watch_events.lines("beta", two.rank("beta"), ("[sparkcluster] phase=ray-join",)), 699)
    failure = launch.overdue(600)
    assert failure.node == "alpha"
    assert failure.message.startswith("no answer within 600 s (alpha: Ray 1/2, missing 192.168.177.12; beta: ")
    assert "waiting for the head's Ray" in failure.message
    assert failure.hint
