"""Transitions of requests and models, one rule per test; times are passed in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from sparkcluster.gateway.config import Config, Model
from sparkcluster.gateway.schedule import DRAIN_S, MOST_WAITING, RETRY_S, UNREACHABLE_S, Request, States, Unavailable

GB = 10**9


def model(name: str, size: int | None = 60 * GB, *nodes: str, idle_s: float | None = 1200.0) -> Model:
    sizes = dict.fromkeys(nodes or ("n1",), size)
    return Model(name, (name,), "chat", None, sizes, idle_s, 40.0, (f"http://{name}",))


def config(*models: Model) -> Config:
    return Config("", 1, {}, None, 100 * GB, models)


class Timed(States):
    """States of ``models``, whose clock is ``time``."""

    def __init__(self, *models: Model, time: float = 0) -> None:
        self.time = time
        super().__init__(config(*models), lambda: self.time)


def at(states: Timed, now: float, **reported: str) -> dict[str, bool]:
    states.time = now
    return states.step({name: {"state": state, "why": "out of memory"} for name, state in reported.items()})


def request(states: Timed, name: str, now: float) -> Request:
    states.time, found = now, Request(name)
    states.enter(found)
    return found


def actions(states: Timed) -> Mapping[str, str]:
    return {name: seen.state for name, seen in states.seen.items()}


def test_many_requests_cause_one_load_and_wait_in_a_bounded_queue() -> None:
    states = Timed(model("a"))
    at(states, 0, a="stopped")
    waiting = [request(states, "a", 1) for _ in range(MOST_WAITING)]
    with pytest.raises(Unavailable, match="the queue of a is full"):
        request(states, "a", 1)
    assert [at(states, 2, a="stopped"), at(states, 3, a="starting"), at(states, 4, a="ready")] == [{"a": True}, {}, {}]
    assert all(each.admitted for each in waiting)


def test_models_running_at_the_start_of_the_gateway_are_adopted_as_just_used() -> None:
    states = Timed(model("a"), time=5000)
    at(states, 5000, a="ready")
    assert request(states, "a", 5001).admitted
    states = Timed(model("a"), time=5000)
    assert [at(states, now, a="ready") for now in (5000, 6199, 6200)] == [{}, {}, {"a": False}]


def test_a_request_during_an_unload_waits_and_triggers_a_load() -> None:
    """llama-swap#946: a slot hung when a request arrived during an unload."""
    states = Timed(model("a"))
    at(states, 0, a="ready")
    slow = request(states, "a", 1)
    states.unload("a")
    late = request(states, "a", 3)
    assert at(states, 4, a="ready") == {}
    states.leave(slow)
    assert at(states, 5, a="ready") == {"a": False}
    assert at(states, 6, a="stopping") == {}
    assert at(states, 7, a="stopped") == {"a": True}
    at(states, 8, a="ready")
    assert late.admitted


def test_an_endless_request_does_not_prevent_an_unload() -> None:
    states = Timed(model("a"))
    at(states, 0, a="ready")
    request(states, "a", 1)
    states.unload("a")
    assert [at(states, now, a="ready") for now in (DRAIN_S, 1 + DRAIN_S)] == [{}, {"a": False}]


def test_a_manual_unload_refuses_waiting_requests() -> None:
    states = Timed(model("a"))
    at(states, 0, a="stopped")
    states.load("a")
    waits = request(states, "a", 1)
    assert at(states, 1, a="stopped") == {"a": True}
    states.unload("a")
    assert waits.refused is not None
    assert waits.refused.text == "a was unloaded by an operator"
    assert at(states, 3, a="starting") == {"a": False}


def test_a_failed_load_is_reported_and_not_retried_for_a_minute() -> None:
    states = Timed(model("a"))
    at(states, 0, a="stopped")
    waits = request(states, "a", 1)
    at(states, 1, a="stopped")
    at(states, 9, a="failed")
    assert waits.refused is not None
    assert (waits.refused.text, waits.refused.status) == (
        "a cannot be loaded now; its operator can see why with sparkcluster status",
        503,
    )
    with pytest.raises(Unavailable) as refused:
        request(states, "a", 19)
    assert refused.value.retry_after_s == RETRY_S - 10
    request(states, "a", 9 + RETRY_S)
    assert at(states, 10 + RETRY_S, a="failed") == {"a": True}


def test_the_least_recently_used_models_are_unloaded_as_few_as_suffice() -> None:
    """Three are past their minimum residence: the oldest is too small, and the newest is not needed."""
    states = Timed(model("small", 10 * GB), model("old", 40 * GB), model("new", 40 * GB), model("d", 50 * GB))
    at(states, 0, small="ready", old="ready", new="ready", d="stopped")
    for now, name in enumerate(["small", "old", "new"], 1):
        states.leave(request(states, name, now))
    request(states, "d", 61)
    at(states, 61, small="ready", old="ready", new="ready", d="stopped")
    assert actions(states) == {"small": "ready", "old": "draining", "new": "ready", "d": "stopped"}


def test_a_newer_request_does_not_take_the_memory_for_the_oldest() -> None:
    states = Timed(model("a"), model("b"), model("c", 30 * GB))
    at(states, 0, a="ready", b="stopped", c="stopped")
    request(states, "b", 1)
    request(states, "c", 2)
    assert at(states, 3, a="ready", b="stopped", c="stopped") == {}
    assert at(states, 61, a="ready", b="stopped", c="stopped") == {}
    assert at(states, 62, a="ready", b="stopped", c="stopped") == {"a": False}
    assert at(states, 65, a="stopped", b="stopped", c="stopped") == {"b": True}
    assert at(states, 70, a="stopped", b="starting", c="stopped") == {}, "two starts on one node"
    assert at(states, 99, a="stopped", b="ready", c="stopped") == {"c": True}


def test_a_wait_for_a_lost_node_blocks_no_other_request() -> None:
    """Half of a may still use the memory of n1; so b cannot start, and c may."""
    states = Timed(model("a", 60 * GB, "n2", "n1"), model("b"), model("c", 30 * GB))
    at(states, 0, a="ready", b="stopped", c="stopped")
    states.polled("a", "http://a", "refused")
    at(states, UNREACHABLE_S, a="unreachable", b="stopped", c="stopped")
    late = request(states, "a", 40)
    request(states, "b", 41)
    request(states, "c", 42)
    assert at(states, 43, a="unreachable", b="stopped", c="stopped") == {"c": True}
    assert late.refused is not None
    assert late.refused.text == "a cannot be loaded now; its operator can see why with sparkcluster status"


def test_a_model_that_cannot_fit_is_refused_with_the_sum() -> None:
    states = Timed(model("base", 50 * GB, idle_s=None), model("a"))
    at(states, 0, a="stopped")
    for way_in in (lambda: request(states, "a", 1), lambda: states.load("a")):
        with pytest.raises(Unavailable, match=r"with others it needs 110.0 GB on n1, which has 100.0 GB for models"):
            way_in()
    assert at(states, 2, a="stopped") == {}


def test_a_changed_inventory_while_requests_wait() -> None:
    states = Timed(model("a"), model("b"), model("c"))
    at(states, 0, a="stopped", b="stopped", c="stopped")
    a, b, c = (request(states, name, 1) for name in "abc")
    states.reload(config(model("b"), model("c", idle_s=None), model("d")))
    assert a.refused is not None
    assert a.refused.status == 404
    assert (b.admitted, b.refused, c.admitted) == (False, None, True)
    states.leave(a)
    assert states.backend(a, ()) == "", "another process may have its port by now"
    assert at(states, 4, b="stopped", d="stopped") == {}, "c takes memory again, since it is always-on now"


def test_replicas_are_balanced_by_requests_in_flight_and_a_failed_one_gets_none() -> None:
    states = Timed(dataclasses.replace(model("base", idle_s=None), backends=("http://1", "http://2")))
    first, second, third = (request(states, "base", 1) for _ in range(3))
    assert [states.backend(each, ()) for each in (first, second)] == ["http://1", "http://2"]
    states.leave(second)
    states.polled("base", "http://2", "refused")
    assert [states.backend(third, tried) for tried in ((), ["http://1"])] == ["http://1", "http://2"]
    assert states.backend(third, ["http://1", "http://2"]) == ""
