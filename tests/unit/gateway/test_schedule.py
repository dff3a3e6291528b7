"""The state machine of the gateway under random schedules: requests, faults, and slow engines.

Simulated time advances only by explicit steps; nothing sleeps. Invariants are asserted at the places that could break them.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sparkcluster.gateway import schedule
from sparkcluster.gateway.config import Config, Model
from sparkcluster.gateway.schedule import DRAIN_S, RESIDENCE_S, STREAM_WAIT_S, Request, States, Unavailable, decide

ROOM = 100
PATIENCE_S = 540.0  # of half of the clients, if anything fails
TICK_S = 20.0
FAULTS = ("door gone", "node gone", "start fails", "engine dies", "unload", "load", "gateway restarts", "removed")


def model(name: str, sizes: dict[str, int | None], idle_s: float | None, start_s: float | None = None) -> Model:
    return Model(name, (name,), "chat", None, sizes, idle_s, start_s, (f"http://{name}",))


def config(*models: Model) -> Config:
    return Config("", 1, {}, None, ROOM, models)


@dataclasses.dataclass
class Engine:
    """The real state of a model on demand."""

    start_s: float
    stop_s: float
    state: str = "stopped"
    until: float = 0.0
    began: float = 0.0
    fails: bool = False
    died: bool = False
    by_hand: bool = False


@dataclasses.dataclass
class Plan:
    config: Config
    engines: dict[str, Engine]
    events: list[tuple[float, str, str, float]]
    faults: bool


@st.composite
def plans(draw: st.DrawFn, *, faults: bool = True) -> Plan:
    nodes = draw(st.sampled_from([["n1"], ["n1", "n2"]]))
    names = [f"m{number}" for number in range(draw(st.integers(2, 4)))]
    size = st.one_of(st.integers(20, 70), st.integers(20, 70), st.none())
    where = st.sampled_from([["n1"], nodes[-1:], nodes])
    models = [
        model(
            name,
            {node: draw(size) for node in draw(where)},
            draw(st.sampled_from([60.0, 300.0, 1200.0])),
            draw(st.sampled_from([None, 40.0, 100.0])),
        )
        for name in names
    ]
    base = model("base", {"n1": draw(st.integers(0, 30))}, None)
    engines = {name: Engine(draw(st.integers(5, 150)), draw(st.integers(1, 20))) for name in names}
    gap = st.sampled_from([0.0, 1.0, 7.0, 30.0, 90.0])
    work = st.sampled_from([1.0, 20.0, 200.0, 900.0 if faults else 100.0])
    request = st.tuples(gap, st.just("request"), st.sampled_from([*names, "base"]), work)
    fault = st.tuples(gap, st.sampled_from(FAULTS), st.sampled_from(names), st.sampled_from([5.0, 40.0, 200.0]))
    drawn = draw(st.lists(st.one_of(request, request, request, fault) if faults else request, min_size=5, max_size=25))
    times = itertools.accumulate(event[0] for event in drawn)
    return Plan(
        config(base, *models), engines, [(at, *event[1:]) for at, event in zip(times, drawn, strict=True)], faults
    )


class Client(Request):
    """A client that waits at most ``patience``; then its request is in flight for ``work_s``."""

    def __init__(self, name: str, world: World, work_s: float) -> None:
        super().__init__(name, STREAM_WAIT_S)
        self.world, self.work_s, self.came, self.began = world, work_s, world.now, 0.0
        self.outcome = ""

    def end(self, refused: Unavailable | None = None) -> None:
        super().end(refused)
        if refused is not None:
            self.outcome = "refused"
            return
        self.began = self.world.now
        assert self.world.states.backend(self, ()) == f"http://{self.model}", "answered by another model"
        engine = self.world.engines.get(self.model)
        if engine is not None and engine.state != "ready":
            assert engine.died, "admitted, but its model is not ready"
            self.outcome = "engine died"


class World:
    """Clients, the gateway's state machine, guards, and engines."""

    def __init__(self, plan: Plan) -> None:
        self.now, self.plan = 0.0, plan
        self.engines = {name: dataclasses.replace(engine) for name, engine in plan.engines.items()}
        self.clients: list[Client] = []
        self.all: list[Client] = []
        self.gone: dict[str, float] = {}  # the guards, a node, or a model, and until when
        self.restart()

    def restart(self) -> None:
        self.states = States(self.config(), lambda: self.now)

    def config(self) -> Config:
        found = self.plan.config
        here = tuple(each for each in found.models if self.gone.get(each.name, 0) <= self.now)
        return dataclasses.replace(found, models=here)

    def run(self) -> None:
        events = list(self.plan.events)
        while events or self.clients:
            due = [self.now + TICK_S, *(event[0] for event in events[:1])]
            due += [engine.until for engine in self.engines.values() if engine.state in {"starting", "stopping"}]
            due += [client.began + client.work_s for client in self.clients if client.admitted]
            self.now = max(self.now + 0.01, min(due))
            self.engines_move()
            while events and events[0][0] <= self.now:
                self.happen(*events.pop(0)[1:])
            self.clients_move()
            self.turn()
            self.clients_move()
            self.check_room()
        assert all(client.outcome for client in self.all), "a request is lost"
        if not self.plan.faults:
            assert {client.outcome for client in self.all} <= {"answered"}, "a request is not served"

    def happen(self, what: str, name: str, seconds: float) -> None:
        engine = self.engines.get(name, Engine(0, 0))
        if what == "request":
            self.arrive(Client(name, self, seconds))
        elif what in {"door gone", "node gone"}:
            self.gone["door" if what == "door gone" else self.head(name)] = self.now + seconds
        elif what == "start fails":
            engine.fails = True
        elif what == "engine dies" and engine.state == "ready":
            self.start(engine)
            engine.died = True
            self.cut(name, "engine died")
        elif what in {"load", "unload"} and name in self.states.models:
            getattr(self.states, what)(name)
            engine.by_hand = engine.by_hand or what == "unload"
        elif what == "gateway restarts":
            for client in self.clients:
                client.outcome = client.outcome or "gateway restarted"
            self.clients.clear()
            self.restart()
        elif what == "removed":
            self.gone[name] = self.now + seconds
            engine.state = "stopped"
            self.states.reload(self.config())
            self.cut(name, "removed")

    def arrive(self, client: Client) -> None:
        self.all.append(client)
        self.clients.append(client)
        try:
            self.states.enter(client)
        except Unavailable as unavailable:
            client.end(unavailable)
            self.clients.remove(client)

    def head(self, name: str) -> str:
        return min(self.model(name).sizes)

    def start(self, engine: Engine) -> None:
        engine.state, engine.until = "starting", self.now + engine.start_s

    def engines_move(self) -> None:
        for engine in self.engines.values():
            if engine.state == "stopping" and engine.until <= self.now:
                engine.state = "stopped"
            elif engine.state == "starting" and engine.until <= self.now:
                engine.state, engine.fails = ("failed" if engine.fails else "ready"), False
                engine.began, engine.died = engine.began if engine.died else self.now, False

    def clients_move(self) -> None:
        for client in self.clients:
            if client.admitted and client.began + client.work_s <= self.now:
                client.outcome = client.outcome or "answered"
            elif (
                not client.admitted and client.work_s > 20 and self.plan.faults and self.now - client.came >= PATIENCE_S
            ):
                client.outcome = client.outcome or "gave up"
            assert client.admitted or client.outcome or self.now - client.came < STREAM_WAIT_S + TICK_S, (
                "a wait does not end"
            )
        for client in [client for client in self.clients if client.outcome]:
            self.clients.remove(client)
            self.states.leave(client)

    def turn(self) -> None:
        if any(0 < self.gone.get(name, 0) <= self.now and name not in self.states.models for name in self.engines):
            self.states.reload(self.config())
        for name in self.states.models:
            serves = name == "base" or self.engines[name].state == "ready"
            self.states.polled(name, f"http://{name}", None if serves else "refused")
        if self.gone.get("door", 0) > self.now:
            assert self.states.step({}) == {}, "notifies a stopped process of the gateway"
            return
        reports = {}
        for name, engine in self.engines.items():
            away = self.gone.get(self.head(name), 0) > self.now
            reports[name] = {"state": "unreachable" if away else engine.state, "why": "because"}
        for name, run in self.states.step(reports).items():
            self.want(name, self.engines[name], run)

    def want(self, name: str, engine: Engine, run: bool) -> None:
        if run and engine.state in {"stopped", "failed"}:
            self.start(engine)
            engine.by_hand = engine.died = False
        elif not run and engine.state in {"starting", "ready"}:
            in_flight = [client for client in self.clients if client.model == name and client.admitted]
            assert all(self.now - client.began >= DRAIN_S for client in in_flight), "a request is cut"
            if engine.state == "ready" and not engine.by_hand:
                model = self.model(name)
                residence_s = max(RESIDENCE_S, model.start_s or 0.0)
                assert self.now - engine.began >= min(model.idle_s or 0.0, residence_s) - 1, "thrash"
            engine.state, engine.until = "stopping", self.now + engine.stop_s
            self.cut(name, "cut")

    def model(self, name: str) -> Model:
        (found,) = [each for each in self.plan.config.models if each.name == name]
        return found

    def cut(self, name: str, outcome: str) -> None:
        for client in self.clients:
            if client.model == name and client.admitted:
                client.outcome = client.outcome or outcome

    def check_room(self) -> None:
        models = self.plan.config.models
        runs = {name for name, engine in self.engines.items() if engine.state not in {"stopped", "failed"}} | {"base"}
        for node in {node for each in models for node in each.sizes}:
            sizes = [each.sizes[node] for each in models if each.name in runs and node in each.sizes]
            on_demand = sum(each.name in runs and node in each.sizes for each in models if each.idle_s is not None)
            assert sum(size or 0 for size in sizes) <= ROOM, "over budget"
            assert None not in sizes or on_demand <= 1, "over budget"


QUICK = settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))


@QUICK
@given(plans())
def test_no_request_is_lost_and_no_plan_over_budget(plan: Plan) -> None:
    """With any fault: every wait ends, with the right model, no request is cut before its time, and no node is over budget."""
    World(plan).run()


@QUICK
@given(plans(faults=False))
def test_without_faults_every_request_is_answered(plan: Plan) -> None:
    """A waiting request is served in the end, however long others use the memory."""
    World(plan).run()


def without_residence(now: float, models: Any, seen: Any, room: Any) -> dict[str, str]:
    with mock.patch.object(schedule, "RESIDENCE_S", 0.0):
        return decide(now, {name: dataclasses.replace(each, start_s=None) for name, each in models.items()}, seen, room)


def without_drain(now: float, models: Any, seen: Any, room: Any) -> dict[str, str]:
    return {
        name: "stopping" if state == "draining" else state for name, state in decide(now, models, seen, room).items()
    }


def over_budget(now: float, models: Any, seen: Any, room: Any) -> dict[str, str]:
    return decide(now, models, seen, 2 * room)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [(without_residence, "thrash"), (without_drain, "a request is cut"), (over_budget, "over budget")],
)
def test_faulty_schedulers_are_detected(wrong: Any, what: str) -> None:
    """The properties above are meaningful: each of these faulty schedulers violates one."""

    @settings(QUICK, phases=[Phase.generate], derandomize=True, database=None)
    @given(plans(faults=False))
    def run(plan: Plan) -> None:
        World(plan).run()

    with mock.patch.object(schedule, "decide", wrong), pytest.raises(AssertionError, match=what):
        run()
