"""Which on-demand models run: what is known of each model, and what follows from it. Pure: no clock, no connection.

``States`` is fed with requests, with what the guards report, and with the time; ``decide`` says what is started and
what makes room. Times are seconds of one clock that only goes forward.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sparkcluster.gateway.config import Backend, Config, Model

RESIDENCE_S = 60.0
"""A model serves at least this long, and as long as its last start took, before another may take its room: two agents
that alternate between two models would otherwise spend their time loading (llama-swap#612)."""
DRAIN_S = 300.0
"""Requests in flight are cut after this long, so that one endless stream does not keep a model in memory."""
RETRY_S = 60.0
"""A model that failed to load is not tried again for this long."""
UNREACHABLE_S = 30.0
"""A guard that restarts is back within seconds; a request does not wait longer for one that does not answer."""
WAIT_S = 1800.0
"""The longest that a request waits whose client is told of progress (gb10-services: 30 minutes)."""
UNKNOWN = "the gateway's guard does not know it"
MOST_WAITING = 64
"""Requests that wait for one model (gb10-services allows 64 behind those that run)."""


class Unavailable(Exception):
    """Why a request cannot be served: a text for the client, when to come again, and the HTTP status."""

    def __init__(self, text: str, retry_after_s: float = 30.0, status: int = 503) -> None:
        super().__init__(text)
        self.text, self.retry_after_s, self.status = text, max(1, round(retry_after_s)), status


@dataclasses.dataclass
class Seen:
    """What is known of one model.

    ``since``: when ``state`` began. ``heard``: when its guard last reported; ``reachable``: whether it did just now.
    ``holds``: it may have memory. ``serves``: its engine answered when it was last asked. ``start_s``: how long its
    last start took. ``asked``: when it was loaded by hand, until it is ready.
    """

    since: float
    heard: float
    state: str = "unreachable"
    why: str | None = "its guard has not reported yet"
    reachable: bool = False
    holds: bool = True
    serves: bool = False
    context: int | None = None
    start_s: float | None = None
    asked: float | None = None
    last_used: float | None = None
    in_flight: int = 0
    loads: int = 0
    waiting: dict[Request, float] = dataclasses.field(default_factory=dict)

    def enter(self, state: str, now: float, why: str | None = None) -> None:
        """Be in ``state``, since now unless it was before."""
        self.since = self.since if state == self.state else now
        self.state, self.why = state, why

    def is_up(self) -> bool:
        """Whether requests are in flight, or may be."""
        return self.state in {"ready", "draining"}

    def waits_since(self) -> float | None:
        """When the oldest began to wait for it, a request or a load by hand; None if nobody waits."""
        times = [*list(self.waiting.values())[:1], *([] if self.asked is None else [self.asked])]
        return min(times, default=None)

    def used(self, now: float) -> float:
        """When it was last used: now with a request in flight, else no earlier than it became ready."""
        return now if self.in_flight else max(self.since, self.last_used or self.since)


class Request:
    """A request for a model: it waits until it is admitted or refused."""

    def __init__(self, model: str) -> None:
        self.model, self.admitted, self.url = model, False, ""
        self.refused: Unavailable | None = None
        self.seen: Seen

    def end(self, refused: Unavailable | None = None) -> None:
        """End the wait."""
        self.admitted, self.refused = refused is None, refused


def no_room(name: str, running: Collection[str], models: Mapping[str, Model], room: Mapping[str, int]) -> str | None:
    """Why the on-demand model ``name`` does not fit beside ``running`` and those that are always on; None if it does.

    On a node where a size is unknown one on-demand model runs at a time; ``up`` has tried each beside those that are
    always on.
    """
    for node in models[name].sizes:
        here = [each for each in models.values() if node in each.sizes]
        here = [each for each in here if each.idle_s is None or each.name == name or each.name in running]
        sizes = [each.sizes[node] for each in here]
        if (total := sum(size or 0 for size in sizes)) > (most := room.get(node, 0)):
            return f"with the models beside it, {total / 1e9:.1f} GB would be needed of {most / 1e9:.1f} GB on {node}"
        if None in sizes and sum(each.idle_s is not None for each in here) > 1:
            return f"not all sizes are known on {node}"
    return None


def decide(
    now: float, models: Mapping[str, Model], seen: Mapping[str, Seen], room: Mapping[str, int]
) -> dict[str, str]:
    """What happens to each on-demand model now: "start", "drain", "stop" or "keep".

    Who waits longest is served first. While it waits for room or for another start on its nodes, nobody who came later
    takes that room, unless a model that cannot be stopped is in its way. Other models make room once they are past
    their residence: as few as suffice, the least recently used first, and none while that does not suffice. A start
    that nobody waits for is given up.

    Args:
        now: the time.
        models: of the inventory, by name.
        seen: what is known of each.
        room: bytes for models on each node.
    """
    actions = {name: _alone(now, model, seen[name]) for name, model in models.items() if model.idle_s is not None}
    holding = {name for name in actions if seen[name].holds}
    stuck = {name for name in holding if not seen[name].reachable}
    leaving = {name for name in actions if actions[name] == "stop" or seen[name].state in {"draining", "stopping"}}
    starting = {node for name in actions if seen[name].state == "starting" for node in models[name].sizes}
    waits = {name: seen[name].waits_since() for name in actions if _may_start(now, seen[name])}
    for _, name in sorted((since, name) for name, since in waits.items() if since is not None):
        each, nodes = seen[name], set(models[name].sizes)
        if no_room(name, stuck, models, room):
            continue
        beside = [other for other in holding - leaving if nodes & set(models[other].sizes)]
        unwanted = {other for other in beside if _unwanted(seen[other])}
        actions.update(dict.fromkeys(unwanted, "stop"))
        leaving |= unwanted
        if each.state in {"stopped", "failed"} and each.reachable and not nodes & starting:
            if not no_room(name, holding, models, room):
                actions[name] = "start"
                starting |= nodes
            else:
                able = {other for other in beside if _yields(now, seen[other])}
                chosen = set() if no_room(name, holding - leaving - able, models, room) else able
                for other in sorted(chosen, key=lambda other: seen[other].used(now), reverse=True):
                    if not no_room(name, (holding - leaving - chosen) | {other}, models, room):
                        chosen = chosen - {other}
                actions.update(dict.fromkeys(chosen, "drain"))
                leaving |= chosen
        holding.add(name)
    return actions


def _alone(now: float, model: Model, seen: Seen) -> str:
    """What happens to a model whatever the others do."""
    drained = seen.state == "draining" and (not seen.in_flight or now - seen.since >= DRAIN_S)
    idle = seen.state == "ready" and model.idle_s is not None and now - seen.used(now) >= model.idle_s
    return "stop" if seen.reachable and (drained or idle) else "keep"


def _may_start(now: float, seen: Seen) -> bool:
    """Whether it may be started now, or once it has stopped."""
    return seen.state in {"stopped", "draining", "stopping"} or (seen.state == "failed" and now - seen.since >= RETRY_S)


def _unwanted(seen: Seen) -> bool:
    return seen.state == "starting" and seen.reachable and seen.waits_since() is None


def _yields(now: float, seen: Seen) -> bool:
    return seen.state == "ready" and seen.reachable and now - seen.since >= max(RESIDENCE_S, seen.start_s or 0.0)


class States:
    """The state of all models, and the requests that wait for them or are in flight."""

    def __init__(self, config: Config, now: float, decider: Callable[..., dict[str, str]] = decide) -> None:
        self.models: dict[str, Model] = {}
        self.seen: dict[str, Seen] = {}
        self.room: dict[str, int] = {}
        self.busy: Counter[str] = Counter()
        self.up: dict[str, bool] = {}
        self._decide = decider
        self.reload(config, now)

    def reload(self, config: Config, now: float) -> None:
        """Take in another inventory. Requests for what is gone are refused; others go on, or wait on."""
        self.models, self.room = {model.name: model for model in config.models}, config.room
        for name in set(self.seen) - set(self.models):
            self._end(self.seen.pop(name), now, Unavailable(f"{name} is no longer in the inventory", status=404))
        for name, model in self.models.items():
            seen = self.seen.setdefault(name, Seen(since=now, heard=now))
            seen.start_s = seen.start_s or model.start_s
            if model.idle_s is None:
                self._end(seen, now)

    def enter(self, request: Request, now: float) -> None:
        """Admit ``request`` if its model is ready or always on, else let it wait.

        Raises:
            Unavailable: it would wait in vain, or too many wait.
        """
        name, model = request.model, self._model(request.model)
        seen = request.seen = self.seen[name]
        if model.idle_s is None or seen.state == "ready":
            seen.waiting[request] = now
            self._end(seen, now)
            return
        if seen.state == "failed" and now - seen.since < RETRY_S:
            raise Unavailable(f"{name} cannot be loaded: {seen.why}", RETRY_S - (now - seen.since))
        self._require_room(name)
        if len(seen.waiting) >= MOST_WAITING:
            raise Unavailable(f"{MOST_WAITING} requests wait for {name} already")
        seen.waiting[request] = now

    def leave(self, request: Request, now: float) -> None:
        """Forget ``request``, whether it waits or is in flight."""
        seen = request.seen
        seen.waiting.pop(request, None)
        if request.admitted:
            seen.in_flight, seen.last_used, request.admitted = seen.in_flight - 1, now, False
        self._release(request)

    def backend(self, request: Request, tried: Collection[str]) -> Backend | None:
        """The engine that ``request`` goes to: it answers, has fewest requests, and its URL is not in ``tried``.

        By the inventory as it is now: a port of a model that is gone may be another's.
        """
        self._release(request)
        model = self.models.get(request.model)
        left = [each for each in (model.backends if model else ()) if each.url not in tried]
        if not left:
            return None
        found = min(left, key=lambda each: (not self.up.get(each.url, True), self.busy[each.url]))
        request.url = found.url
        self.busy[found.url] += 1
        return found

    def polled(self, name: str, now: float, answers: Mapping[str, str | None], context: int | None) -> None:
        """Take in why each engine of ``name``, by URL, did not answer (None: it did), and its context length."""
        seen = self.seen[name]
        self.up.update({url: why is None for url, why in answers.items()})
        seen.serves, seen.context = None in answers.values(), context or seen.context
        if self.models[name].idle_s is None:
            why = "; ".join(f"{url}: {why}" for url, why in answers.items()) or "it has never been started"
            seen.enter("ready" if seen.serves else "failed", now, None if seen.serves else why)

    def load(self, name: str, now: float) -> str:
        """Have ``name`` loaded as if a request waited for it; what happens now.

        Raises:
            Unavailable: it is always on, is not in the inventory, has never been started, or does not fit.
        """
        seen = self._on_demand(name)
        if seen.state == "ready":
            return f"{name} is ready"
        self._require_room(name)
        seen.asked = now if seen.asked is None else seen.asked
        if seen.state == "failed":
            seen.since = now - RETRY_S
        return f"{name} is {seen.state}" + ("" if seen.state == "starting" else "; it starts when there is room for it")

    def unload(self, name: str, now: float) -> str:
        """Drain ``name`` at once, and refuse who waits for it; requests that come later have it loaded again.

        Raises:
            Unavailable: it is always on, is not in the inventory, or has never been started.
        """
        seen = self._on_demand(name)
        self._end(seen, now, Unavailable(f"{name} was unloaded by an operator"))
        if seen.state not in {"starting", "ready"}:
            return f"{name} is {seen.state}"
        seen.enter("draining", now)
        return f"{name} is unloaded; requests in flight ({seen.in_flight}) have {DRAIN_S:.0f} s to end"

    def step(self, now: float, reports: Mapping[str, Mapping[str, Any]], missing: str = UNKNOWN) -> dict[str, bool]:
        """Take in what the guards report, and say what they have to run: True or False for models that change.

        Args:
            now: the time.
            reports: ``states`` of the door.
            missing: why there is no report of a model.
        """
        for name, model in self.models.items():
            if model.idle_s is not None:
                found = reports.get(name, {"state": "unreachable", "why": missing})
                self._report(name, now, found["state"], found.get("why"))
        wants = {}
        for name, action in self._decide(now, self.models, self.seen, self.room).items():
            seen = self.seen[name]
            if action == "start":
                seen.enter("starting", now)
                seen.holds, seen.loads, wants[name] = True, seen.loads + 1, True
            elif action == "drain":
                seen.enter("draining", now)
            elif action == "stop":
                seen.enter("stopping", now)
                wants[name] = False
        return wants

    def fail(self, name: str, now: float, why: str | None, state: str = "failed") -> None:
        """Take in that ``name`` cannot be started, and refuse who waits for it."""
        seen = self.seen[name]
        seen.enter(state, now, why)
        self._end(seen, now, Unavailable(f"{name} cannot be loaded: {why}", RETRY_S))

    def progress(self, name: str, now: float) -> str:
        """How much of its last start's seconds has passed; empty if it does not start, or that is unknown."""
        seen = self.seen.get(name)
        if seen is None or seen.state != "starting" or not seen.start_s:
            return ""
        return f"{min(99, int(100 * (now - seen.since) / seen.start_s))} %"

    def _on_demand(self, name: str) -> Seen:
        model = self._model(name)
        if model.idle_s is None:
            raise Unavailable(f"{name} is always on: sparkcluster up and down start and stop it", status=409)
        return self.seen[name]

    def _require_room(self, name: str) -> None:
        if too_big := no_room(name, (), self.models, self.room):
            raise Unavailable(f"{name} cannot be loaded: {too_big}")

    def _model(self, name: str) -> Model:
        model = self.models.get(name)
        if model is None:
            raise Unavailable(f"{name} is not in the inventory", status=404)
        if not model.backends:
            raise Unavailable(f"{name} has never been started: sparkcluster up INVENTORY --model {name}")
        return model

    def _report(self, name: str, now: float, state: str, why: str | None) -> None:
        seen = self.seen[name]
        seen.reachable = state != "unreachable"
        for request in [each for each, came in seen.waiting.items() if now - came >= WAIT_S]:
            del seen.waiting[request]
            request.end(Unavailable(f"{name} is not loaded after {WAIT_S:.0f} s"))
        if not seen.reachable:
            # An engine that answers serves on while its guard restarts.
            if now - seen.heard >= UNREACHABLE_S and not (seen.serves and seen.is_up()):
                self.fail(name, now, why, "unreachable")
            return
        seen.heard, seen.holds = now, state not in {"stopped", "failed"}
        if seen.state == "draining" and state in {"starting", "ready"}:
            return
        if state == "failed" != seen.state:
            self.fail(name, now, why)
        if seen.state == "starting" and state == "ready":
            seen.start_s = now - seen.since
        seen.enter(state, now, why)
        if state == "ready":
            seen.serves = seen.serves or seen.since == now
            self._end(seen, now)

    def _end(self, seen: Seen, now: float, refused: Unavailable | None = None) -> None:
        """End the wait of all who wait: admitted, or ``refused``."""
        waiting, seen.waiting, seen.asked = seen.waiting, {}, None
        if waiting and refused is None:
            seen.in_flight, seen.last_used = seen.in_flight + len(waiting), now
        for request in waiting:
            request.end(refused)

    def _release(self, request: Request) -> None:
        if request.url:
            self.busy[request.url] -= 1
            request.url = ""
