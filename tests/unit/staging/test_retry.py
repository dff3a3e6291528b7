"""What staging does in a silence, with hosts and attempts that the test scripts."""

from __future__ import annotations

import pytest

from sparkcluster.errors import CommandFailed, CommandTimeout, HostLost, LeaseLost
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.retry import Patience
from sparkcluster.staging.retry import LAPSES, Step, until_done

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


def test_a_lease_that_lapsed_in_the_silence_is_taken_again():
    script = Scripted(LOST, LAPSED, "done")
    assert script() == "done"
    assert script.held == ["a"]


def test_a_lease_that_is_refused_each_time_is_lost():
    script = Scripted(*[None, LAPSED] * (LAPSES + 1), "done")
    with pytest.raises(LeaseLost):
        script()
    assert script.held == ["a"] * LAPSES
    assert script.said == [("a", "the lease lapsed: taking it again; it goes on")] * LAPSES


def test_the_lease_of_another_operator_ends_it():
    script = Scripted(LAPSED, "done")
    script.refusal = LeaseLost("bob has the lease", node="a")
    with pytest.raises(LeaseLost, match="bob"):
        script()
