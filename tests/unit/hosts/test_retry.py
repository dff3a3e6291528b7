"""How long a silent node is tried again, under a clock that the test holds."""

from __future__ import annotations

import pytest

from sparkcluster import errors
from sparkcluster.hosts import retry
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.retry import LIMIT_S, REFUSED_S, Patience, until_reached


def refused() -> errors.HostRefused:
    error = errors.HostRefused("10.0.0.1 port 22: connection refused")
    error.__cause__ = ConnectionRefusedError()
    return error


@pytest.mark.parametrize(
    ("error", "until_s"),
    [
        (errors.HostTimeout("no answer"), LIMIT_S),
        (errors.HostLost("broke"), LIMIT_S),
        (errors.HostUnknown("the operator's DNS is away"), LIMIT_S),
        (errors.HostRefused("no route to host"), LIMIT_S),
        (refused(), REFUSED_S),
        (errors.AuthFailed("no key was accepted"), 0),
        (errors.HostKeyChanged("reinstalled"), 0),
        (errors.HostKeyUnknown("never seen"), 0),
        (errors.CommandFailed("exit code 1"), 0),
        (errors.CommandTimeout("took too long"), 0),
    ],
)
def test_a_node_is_tried_again_as_long_as_its_silence_may_pass(error, until_s):
    patience = Patience(100.0)
    assert [patience.continues(error, 100.0 + at) for at in (0, 29, 31, 119, 121)] == [
        at < until_s for at in (0, 29, 31, 119, 121)
    ]


def test_a_task_is_repeated_until_the_node_answers_and_that_is_told_once(monkeypatch):
    monkeypatch.setattr(retry, "_PAUSES_S", (0.0,))
    host, told = FakeHost(), []
    outcomes = iter([errors.HostLost("it broke"), errors.HostTimeout("no answer"), "done"])

    def task():
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert until_reached(host, task, tell=told.append) == "done"
    assert (host.renewed, told) == (2, ["it broke: trying again for up to 120 s"])
