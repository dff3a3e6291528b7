"""What staging does in a silence, with hosts and attempts that the test scripts."""

from __future__ import annotations

import pytest

from sparkcluster.errors import CommandFailed, CommandTimeout, HostLost, LeaseLost, StageError
from sparkcluster.hosts.again import Patience
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.staging.again import LAPSES, Step, until_answered, until_done

LOST = HostLost("connection to a broke", node="a")
LAPSED = LeaseLost("a refuses the change: epoch 7 is over", node="a")


class Scripted:
    """Attempts that end with ``outcomes``: errors, None for a sign of life before the next one, or a result."""

    def __init__(self, *outcomes, patience_s=120.0, hold=True):
        self.outcomes = list(outcomes)
        self.said, self.held, self.stop = [], [], False
        self.hosts = [FakeHost("a"), FakeHost("b")]
        self.step = Step(
            "stage weights",
            lambda _: {},
            lambda: self.stop,
            self.hold if hold else None,
            patience_s,
            lambda node, text: self.said.append((node, text)),
        )
        self.refusal = None

    def hold(self, node):
        self.held.append(node)
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal

    def attempt(self, alive):
        while (outcome := self.outcomes.pop(0)) is None:
            alive()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def __call__(self):
        return until_done(self.step, self.hosts, self.attempt, then="it goes on")


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(Patience, "pause_s", lambda _: 0.0)


def test_every_host_is_connected_again():
    """The failure may be that of a jump host, which has the name of one node that is behind it."""
    script = Scripted(LOST, LOST, "done")
    assert script() == "done"
    assert [host.renewed for host in script.hosts] == [2, 2]


@pytest.mark.parametrize("error", [LOST, CommandTimeout("relay on a printed nothing for 60 s", node="a")])
def test_a_node_that_stays_silent_is_given_up(error):
    with pytest.raises(type(error)):
        Scripted(*[error] * 3, patience_s=0.0)()


def test_what_a_node_answers_is_no_silence():
    with pytest.raises(CommandFailed):
        Scripted(CommandFailed("exit code 1", node="a"), "done")()


def test_a_step_that_was_stopped_does_not_wait():
    script = Scripted(LOST, "done")
    script.stop = True
    with pytest.raises(HostLost):
        script()


def test_a_lease_that_lapsed_in_the_silence_is_taken_again():
    script = Scripted(LOST, LAPSED, "done")
    assert script() == "done"
    assert script.held == ["a"]


def test_it_is_taken_again_once_the_node_is_back():
    script = Scripted(LAPSED, "done")
    script.refusal = LOST
    assert script() == "done"
    assert script.held == ["a", "a"]


def test_a_lease_that_is_refused_each_time_is_lost():
    script = Scripted(*[None, LAPSED] * (LAPSES + 1), "done")
    with pytest.raises(LeaseLost):
        script()
    assert script.held == ["a"] * LAPSES
    assert script.said == [("a", "the lease lapsed: taking it again; it goes on")] * LAPSES


def test_a_look_at_many_nodes_is_repeated_until_all_answer_and_mends_every_connection():
    script = Scripted()
    looks = [{"a": CommandTimeout("probe on a", node="a"), "b": CommandTimeout("probe on b", node="b")}, {}]
    assert until_answered(script.step, Fleet({host.name: host for host in script.hosts}), ["a", "b"],
                          lambda: looks.pop(0), lambda found: found) == {}  # fmt: skip
    assert [host.renewed for host in script.hosts] == [2, 2]
    assert script.said == [("a", "probe on a: connecting again; its facts are collected again")]


def test_an_answer_that_is_no_silence_ends_a_look_at_once():
    script = Scripted()
    errors = {"a": LOST, "b": CommandFailed("exit code 1", node="b")}
    with pytest.raises(StageError, match="stage weights on b: exit code 1"):
        until_answered(script.step, Fleet({host.name: host for host in script.hosts}), ["a", "b"],
                       lambda: errors, lambda found: found)  # fmt: skip


def test_the_lease_of_another_operator_ends_it():
    script = Scripted(LAPSED, "done")
    script.refusal = LeaseLost("bob has the lease", node="a")
    with pytest.raises(LeaseLost, match="bob"):
        script()
