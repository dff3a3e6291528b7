"""Decides which on-demand models run, from what is known about each model. Makes no connections.

``States`` receives requests and the reports of guards; ``decide`` says what to start and what makes room. Times are
seconds of a monotonic clock, which is passed in.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sparkcluster.gateway.config import Config, Model

RESIDENCE_S = 60.0
"""A model serves at least this long, and at least as long as its recorded start took, before it makes room for another:
two agents that alternate between two models would otherwise spend their time loading (llama-swap#612)."""
DRAIN_S = 300.0
"""Requests in flight are cut after this time, so that an endless stream cannot keep a model in memory."""
RETRY_S = 60.0
"""A model that failed to load is not retried for this long."""
UNREACHABLE_S = 30.0
"""A restarting guard is back within seconds; a request waits no longer for a guard that does not answer."""
WAIT_S, STREAM_WAIT_S = 540.0, 1800.0
"""Longest wait of a request for its model: clients of OpenAI and Anthropic give up after 600 s, streaming clients,
which see progress, do not (gb10-services: 30 minutes)."""
FAILED = "{} cannot be loaded now; its operator can see why with sparkcluster status"
"""The text for clients, which should not see addresses, operators and other models."""
UNKNOWN = "it has no guard: sparkcluster up INVENTORY installs one"
MOST_WAITING = 64
"""Limit of requests that wait for one model (gb10-services allows 64 behind the running ones)."""


class Unavailable(Exception):
    """A request that cannot be served: text for the client, when to retry, and HTTP status."""

    def __init__(self, text: str, retry_after_s: float = 30.0, status: int = 503) -> None:
        super().__init__(text)
        self.text, self.retry_after_s, self.status = text, max(1, round(retry_after_s)), status


@dataclasses.dataclass
class ModelState:
    """The state of one model.

    ``since``: when ``state`` began. ``heard``: its guard's last report; ``reachable``: whether the guard answered just
    now. ``holds``: whether it may hold memory. ``waiting``: waiting requests, with the time they began to wait.
    """

    since: float
    heard: float
    state: str = "unreachable"
    why: str | None = "it has not answered yet"
    reachable: bool = False
    holds: bool = True
    last_used: float | None = None
    in_flight: set[Request] = dataclasses.field(default_factory=set)
    waiting: dict[Request, float] = dataclasses.field(default_factory=dict)

    def enter(self, state: str, now: float, why: str | None = None) -> None:
        """Enter ``state``; ``since`` changes only if the state does."""
        self.since = self.since if state == self.state else now
        self.state, self.why = state, why

    def is_up(self) -> bool:
        """Whether requests are in flight, or may be."""
        return self.state in {"ready", "draining"}

    def used(self, now: float) -> float:
        """When it was last used: now if a request is in flight, and not before it became ready."""
        return now if self.in_flight else max(self.since, self.last_used or self.since)


class Request:
    """A request for a model: it waits, at most ``wait_s``, until it is admitted or refused.

    ``by_hand``: an operator asked for the model to be loaded.
    """

    def __init__(self, model: str, wait_s: float = WAIT_S, *, by_hand: bool = False) -> None:
        self.model, self.wait_s, self.by_hand = model, wait_s, by_hand
        self.admitted, self.url = False, ""
        self.refused: Unavailable | None = None
        self.seen: ModelState
        self._ended = asyncio.Event()

    def end(self, refused: Unavailable | None = None) -> None:
        """End the wait."""
        self.admitted, self.refused = refused is None, refused
        self._ended.set()

    async def ready(self, within_s: float) -> bool:
        """True once it is admitted; False if it still waits after ``within_s``.

        Raises:
            Unavailable: it is refused.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), within_s)
        if self.refused is not None:
            raise self.refused
        return self.admitted


def no_room(name: str, running: Collection[str], models: Mapping[str, Model], room: int) -> str | None:
    """Why the on-demand model ``name`` does not fit in addition to ``running`` and always-on models; None if it does.

    On a node with an unknown size only one on-demand model runs at a time; ``up`` has tested each together with
    the always-on models.
    """
    for node in models[name].sizes:
        here = [each for each in models.values() if node in each.sizes]
        here = [each for each in here if each.idle_s is None or each.name == name or each.name in running]
        sizes = [each.sizes[node] for each in here]
        if (total := sum(size or 0 for size in sizes)) > room:
            return f"with others it needs {total / 1e9:.1f} GB on {node}, which has {room / 1e9:.1f} GB for models"
        if None in sizes and sum(each.idle_s is not None for each in here) > 1:
            return f"not all sizes are known on {node}"
    return None


def decide(now: float, models: Mapping[str, Model], seen: Mapping[str, ModelState], room: int) -> dict[str, str]:
    """The on-demand models that change now, and their next state: "starting", "draining" or "stopping".

    The oldest waiting request comes first. While its model waits for room or for another start on its nodes, later
    requests do not take that room, unless a model that cannot be stopped blocks it. Other models make room once they
    are past their residence time: as few as needed, least recently used first, and none if that would not be enough.

    Args:
        now: the time.
        models: of the inventory, by name.
        seen: the state of each.
        room: bytes for models on a node.
    """
    names = [name for name, model in models.items() if model.idle_s is not None]
    actions = {name: "stopping" for name in names if _is_done(now, models[name], seen[name])}
    holding = {name for name in names if seen[name].holds}
    stuck = {name for name in holding if not seen[name].reachable}
    leaving = {name for name in names if name in actions or seen[name].state in {"draining", "stopping"}}
    starting = {node for name in names if seen[name].state == "starting" for node in models[name].sizes}
    asked = [name for name in names if seen[name].waiting and _may_start(now, seen[name])]
    for name in sorted(asked, key=lambda name: min(seen[name].waiting.values())):
        each, nodes = seen[name], set(models[name].sizes)
        if no_room(name, stuck, models, room):
            continue
        if each.state in {"stopped", "failed"} and each.reachable and not nodes & starting:
            if not no_room(name, holding, models, room):
                actions[name] = "starting"
                starting |= nodes
            else:
                beside = [other for other in holding - leaving if nodes & set(models[other].sizes)]
                able = {other for other in beside if _yields(now, models[other], seen[other])}
                chosen = set() if no_room(name, holding - leaving - able, models, room) else able
                for other in sorted(chosen, key=lambda other: seen[other].used(now), reverse=True):
                    if not no_room(name, (holding - leaving - chosen) | {other}, models, room):
                        chosen = chosen - {other}
                actions.update(dict.fromkeys(chosen, "draining"))
                leaving |= chosen
        holding.add(name)
    return actions


def _is_done(now: float, model: Model, seen: ModelState) -> bool:
    """Whether it stops regardless of other models, because it has drained or is idle."""
    drained = seen.state == "draining" and (not seen.in_flight or now - seen.since >= DRAIN_S)
    idle = seen.state == "ready" and model.idle_s is not None and now - seen.used(now) >= model.idle_s
    return seen.reachable and (drained or idle)


def _may_start(now: float, seen: ModelState) -> bool:
    """Whether it may be started now, or once it has stopped."""
    return seen.state in {"stopped", "draining", "stopping"} or (seen.state == "failed" and now - seen.since >= RETRY_S)


def _yields(now: float, model: Model, seen: ModelState) -> bool:
    return seen.state == "ready" and seen.reachable and now - seen.since >= max(RESIDENCE_S, model.start_s or 0.0)


class States:
    """The states of all models, and the requests that wait or are in flight; ``now`` is the clock."""

    def __init__(self, config: Config, now: Callable[[], float]) -> None:
        self.now = now
        self.seen: dict[str, ModelState] = {}
        self.troubles: dict[str, str | None] = {}  # errors of engines, by URL
        self.reload(config)

    def reload(self, config: Config) -> None:
        """Apply a new config. Requests for removed models are refused; others continue or keep waiting."""
        self.config, self.models = config, {model.name: model for model in config.models}
        for name in set(self.seen) - set(self.models):
            self._end(self.seen.pop(name), Unavailable(f"{name} is no longer in the inventory", status=404))
        for name, model in self.models.items():
            seen = self.seen.setdefault(name, ModelState(since=self.now(), heard=self.now()))
            if model.idle_s is None:
                self._end(seen)

    def enter(self, request: Request) -> None:
        """Admit ``request`` if its model is ready or always on, else queue it; ``leave`` must be called at its end.

        Raises:
            Unavailable: it would wait in vain, the queue is full, or its model is not in the inventory.
        """
        name, now = request.model, self.now()
        seen = self._seen(name)
        waits = self.models[name].idle_s is not None and seen.state != "ready"
        if waits and seen.state == "failed" and now - seen.since < RETRY_S:
            raise Unavailable(FAILED.format(name), RETRY_S - (now - seen.since))
        if waits and (too_big := no_room(name, (), self.models, self.config.room)):
            raise Unavailable(f"{name} cannot be loaded: {too_big}")
        if len(seen.waiting) >= MOST_WAITING:
            raise Unavailable(f"the queue of {name} is full ({MOST_WAITING} requests)")
        request.seen, seen.waiting[request] = seen, now
        if not waits:
            self._end(seen)

    def leave(self, request: Request) -> None:
        """Forget ``request``, whether it waits or is in flight."""
        seen = request.seen
        seen.waiting.pop(request, None)
        if request in seen.in_flight:
            seen.in_flight.remove(request)
            seen.last_used = self.now()

    def backend(self, request: Request, tried: Collection[str]) -> str:
        """URL of an engine for ``request`` that is not in ``tried``: answering, with the fewest requests; else empty.

        From the current config: the port of a removed model may belong to another one.
        """
        busy, model = Counter(each.url for each in request.seen.in_flight), self.models.get(request.model)
        left = [url for url in (model.backends if model else ()) if url not in tried]
        request.url = min(left, key=lambda url: (self.troubles.get(url) is not None, busy[url]), default="")
        return request.url

    def polled(self, name: str, url: str, why: str | None) -> None:
        """Record the result of polling the engine of ``name`` at ``url``: an error, or None."""
        self.troubles[url] = why
        if (model := self.models.get(name)) is not None and model.idle_s is None:
            serves = self._answers(model)
            whys = "; ".join(f"{url}: {self.troubles.get(url)}" for url in model.backends)
            self.seen[name].enter("ready" if serves else "failed", self.now(), None if serves else whys)

    def load(self, name: str) -> str:
        """Load ``name`` as if a request waited for it; returns what happens now.

        Raises:
            Unavailable: as ``enter``.
        """
        seen = self._seen(name)
        if seen.state == "failed":
            seen.since = self.now() - RETRY_S
        self.enter(Request(name, STREAM_WAIT_S, by_hand=True))
        later = "" if seen.state in {"starting", "ready"} else "; it will be loaded once there is room"
        return f"{name} is {seen.state}{later}"

    def unload(self, name: str) -> str:
        """Drain ``name`` now, and refuse waiting requests; a later request loads it again.

        Raises:
            Unavailable: it is not in the inventory.
        """
        seen = self._seen(name)
        self._end(seen, Unavailable(f"{name} was unloaded by an operator"))
        if seen.state not in {"starting", "ready"}:
            return f"{name} is {seen.state}"
        seen.enter("draining", self.now())
        return f"unloading {name}; requests in flight ({len(seen.in_flight)}) have {DRAIN_S:.0f} s to finish"

    def step(self, reports: Mapping[str, Mapping[str, Any]], missing: str = UNKNOWN) -> dict[str, bool]:
        """Process the guards' reports; returns which models must start (True) or stop (False).

        Args:
            reports: ``states`` of the door.
            missing: the reason to record for models without a report.
        """
        now, wants = self.now(), {}
        for name, model in self.models.items():
            if model.idle_s is not None:
                found = reports.get(name, {"state": "unreachable", "why": missing})
                self._report(name, now, found["state"], found.get("why"))
        for name, state in decide(now, self.models, self.seen, self.config.room).items():
            seen = self.seen[name]
            seen.enter(state, now)
            seen.holds |= state == "starting"
            if state != "draining":
                wants[name] = state == "starting"
        return wants

    def fail(self, name: str, why: str | None, state: str = "failed") -> None:
        """Record that ``name`` cannot be started, and refuse its waiting requests."""
        self.seen[name].enter(state, self.now(), why)
        self._end(self.seen[name], Unavailable(FAILED.format(name), RETRY_S))

    def progress(self, name: str) -> str:
        """For example "42 %" of its recorded start time; empty if it is not starting, or that is unknown."""
        model, seen = self.models.get(name), self.seen.get(name)
        if model is None or not model.start_s or seen is None or seen.state != "starting":
            return ""
        return f"{min(99, int(100 * (self.now() - seen.since) / model.start_s))} %"

    def view(self) -> dict[str, dict[str, Any]]:
        """The state of each model, for people; times are ages in seconds."""
        now, found = self.now(), {}
        for name, seen in self.seen.items():
            view: dict[str, Any] = {"state": seen.state, "why": seen.why, "progress": self.progress(name)}
            view |= {"waiting": len(seen.waiting), "in_flight": len(seen.in_flight)}
            view["last_used_s"] = None if seen.last_used is None else now - seen.last_used
            found[name] = view
        return found

    def _seen(self, name: str) -> ModelState:
        if name not in self.seen:
            raise Unavailable(f"the gateway does not know {name}: sparkcluster up INVENTORY updates it", status=404)
        return self.seen[name]

    def _answers(self, model: Model) -> bool:
        return any(self.troubles.get(url) is None for url in model.backends)

    def _report(self, name: str, now: float, state: str, why: str | None) -> None:
        seen = self.seen[name]
        seen.reachable = state != "unreachable"
        for request in [each for each, came in seen.waiting.items() if now - came >= each.wait_s]:
            del seen.waiting[request]
            request.end(Unavailable(f"{name} was not loaded within {request.wait_s:.0f} s"))
        if not seen.reachable:
            # An engine keeps serving while its guard restarts.
            if now - seen.heard >= UNREACHABLE_S and not (seen.is_up() and self._answers(self.models[name])):
                self.fail(name, why, "unreachable")
            return
        seen.heard, seen.holds = now, state not in {"stopped", "failed"}
        if seen.state == "draining" and state in {"starting", "ready"}:
            return
        if state == "failed" != seen.state:
            self.fail(name, why)
        seen.enter(state, now, why)
        if state == "ready":
            self._end(seen)

    def _end(self, seen: ModelState, refused: Unavailable | None = None) -> None:
        """End the wait of all requests: admitted, or ``refused``."""
        waiting, seen.waiting = seen.waiting, {}
        if waiting and refused is None:
            seen.in_flight.update(waiting)
            seen.last_used = self.now()
        for request in waiting:
            request.end(refused)
            if request.by_hand:
                self.leave(request)
