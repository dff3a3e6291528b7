"""Which on-demand models run: what is known of each model, and what follows from it. No connection.

``States`` is fed with requests and with what the guards report; ``decide`` says what is started and what makes room.
Times are seconds of one clock that only goes forward, and is passed in.
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
"""A model serves at least this long, and as long as its recorded start took, before another may take its room: two
agents that alternate between two models would otherwise spend their time loading (llama-swap#612)."""
DRAIN_S = 300.0
"""Requests in flight are cut after this long, so that one endless stream does not keep a model in memory."""
RETRY_S = 60.0
"""A model that failed to load is not tried again for this long."""
UNREACHABLE_S = 30.0
"""A guard that restarts is back within seconds; a request does not wait longer for one that does not answer."""
WAIT_S, STREAM_WAIT_S = 540.0, 1800.0
"""The longest that a request waits for its model: the clients of OpenAI and Anthropic give up after 600 s, one that is
told of progress does not (gb10-services: 30 minutes)."""
FAILED = "{} cannot be loaded now; sparkcluster status shows its operator why"
"""To clients, whom addresses, operators and other models do not concern."""
UNKNOWN = "no guard of it is known: sparkcluster up INVENTORY installs it"
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
    ``holds``: it may have memory. ``waiting``: who waits, since when.
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
        """Be in ``state``, since now unless it was before."""
        self.since = self.since if state == self.state else now
        self.state, self.why = state, why

    def is_up(self) -> bool:
        """Whether requests are in flight, or may be."""
        return self.state in {"ready", "draining"}

    def used(self, now: float) -> float:
        """When it was last used: now with a request in flight, else no earlier than it became ready."""
        return now if self.in_flight else max(self.since, self.last_used or self.since)


class Request:
    """A request for a model: it waits, at most ``wait_s``, until it is admitted or refused.

    With ``by_hand`` an operator has the model loaded before a client asks for it.
    """

    def __init__(self, model: str, wait_s: float = WAIT_S, *, by_hand: bool = False) -> None:
        self.model, self.wait_s, self.by_hand = model, wait_s, by_hand
        self.admitted, self.url = False, ""
        self.refused: Unavailable | None = None
        self.seen: Seen
        self._ended = asyncio.Event()

    def end(self, refused: Unavailable | None = None) -> None:
        """End the wait."""
        self.admitted, self.refused = refused is None, refused
        self._ended.set()

    async def ready(self, within_s: float) -> bool:
        """True once it may go on; False if it still waits after ``within_s``.

        Raises:
            Unavailable: it is refused.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), within_s)
        if self.refused is not None:
            raise self.refused
        return self.admitted


def no_room(name: str, running: Collection[str], models: Mapping[str, Model], room: int) -> str | None:
    """Why the on-demand model ``name`` does not fit beside ``running`` and those that are always on; None if it does.

    On a node where a size is unknown one on-demand model runs at a time; ``up`` has tried each beside those that are
    always on.
    """
    for node in models[name].sizes:
        here = [each for each in models.values() if node in each.sizes]
        here = [each for each in here if each.idle_s is None or each.name == name or each.name in running]
        sizes = [each.sizes[node] for each in here]
        if (total := sum(size or 0 for size in sizes)) > room:
            return f"beside others it needs {total / 1e9:.1f} GB of {node}, which has {room / 1e9:.1f} GB for models"
        if None in sizes and sum(each.idle_s is not None for each in here) > 1:
            return f"not all sizes are known on {node}"
    return None


def decide(now: float, models: Mapping[str, Model], seen: Mapping[str, Seen], room: int) -> dict[str, str]:
    """The on-demand models that change now, and their next state: "starting", "draining" or "stopping".

    The model whose request is oldest comes first. While it waits for room or for another start on its nodes, later
    requests do not take that room, unless a model that cannot be stopped is in its way. Other models make room once
    they are past their residence: as few as suffice, the least recently used first, and none while that does not
    suffice.

    Args:
        now: the time.
        models: of the inventory, by name.
        seen: what is known of each.
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


def _is_done(now: float, model: Model, seen: Seen) -> bool:
    """Whether it stops, whatever the others do: it has drained, or idles."""
    drained = seen.state == "draining" and (not seen.in_flight or now - seen.since >= DRAIN_S)
    idle = seen.state == "ready" and model.idle_s is not None and now - seen.used(now) >= model.idle_s
    return seen.reachable and (drained or idle)


def _may_start(now: float, seen: Seen) -> bool:
    """Whether it may be started now, or once it has stopped."""
    return seen.state in {"stopped", "draining", "stopping"} or (seen.state == "failed" and now - seen.since >= RETRY_S)


def _yields(now: float, model: Model, seen: Seen) -> bool:
    return seen.state == "ready" and seen.reachable and now - seen.since >= max(RESIDENCE_S, model.start_s or 0.0)


class States:
    """The state of all models, and the requests that wait for them or are in flight; ``now`` is the clock."""

    def __init__(self, config: Config, now: Callable[[], float]) -> None:
        self.now = now
        self.seen: dict[str, Seen] = {}
        self.troubles: dict[str, str | None] = {}  # of engines, by URL
        self.reload(config)

    def reload(self, config: Config) -> None:
        """Take in another inventory. Requests for what is gone are refused; others go on, or wait on."""
        self.config, self.models = config, {model.name: model for model in config.models}
        for name in set(self.seen) - set(self.models):
            self._end(self.seen.pop(name), Unavailable(f"{name} is no longer in the inventory", status=404))
        for name, model in self.models.items():
            seen = self.seen.setdefault(name, Seen(since=self.now(), heard=self.now()))
            if model.idle_s is None:
                self._end(seen)

    def enter(self, request: Request) -> None:
        """Admit ``request`` if its model is ready or always on, else let it wait; it has to leave at its end.

        Raises:
            Unavailable: it would wait in vain, too many wait, or its model is not in the inventory.
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
        """URL of the engine for ``request``, none of ``tried``: one that answers, with the fewest requests; else empty.

        By the inventory as it is now: a port of a model that is gone may be another's.
        """
        busy, model = Counter(each.url for each in request.seen.in_flight), self.models.get(request.model)
        left = [url for url in (model.backends if model else ()) if url not in tried]
        request.url = min(left, key=lambda url: (self.troubles.get(url) is not None, busy[url]), default="")
        return request.url

    def polled(self, name: str, url: str, why: str | None) -> None:
        """Take in why the engine of ``name`` at ``url`` did not answer, None if it did."""
        self.troubles[url] = why
        if (model := self.models.get(name)) is not None and model.idle_s is None:
            serves = self._answers(model)
            whys = "; ".join(f"{url}: {self.troubles.get(url)}" for url in model.backends)
            self.seen[name].enter("ready" if serves else "failed", self.now(), None if serves else whys)

    def load(self, name: str) -> str:
        """Have ``name`` loaded as if a request waited for it; what happens now.

        Raises:
            Unavailable: as ``enter``.
        """
        seen = self._seen(name)
        if seen.state == "failed":
            seen.since = self.now() - RETRY_S
        self.enter(Request(name, STREAM_WAIT_S, by_hand=True))
        later = "" if seen.state in {"starting", "ready"} else "; it is loaded as soon as there is room for it"
        return f"{name} is {seen.state}{later}"

    def unload(self, name: str) -> str:
        """Drain ``name`` at once, and refuse who waits for it; requests that come later have it loaded again.

        Raises:
            Unavailable: it is not in the inventory.
        """
        seen = self._seen(name)
        self._end(seen, Unavailable(f"{name} was unloaded by an operator"))
        if seen.state not in {"starting", "ready"}:
            return f"{name} is {seen.state}"
        seen.enter("draining", self.now())
        return f"{name} is unloaded; requests in flight ({len(seen.in_flight)}) have {DRAIN_S:.0f} s to end"

    def step(self, reports: Mapping[str, Mapping[str, Any]], missing: str = UNKNOWN) -> dict[str, bool]:
        """Take in what the guards report, and say what they have to run: True or False for models that change.

        Args:
            reports: ``states`` of the door.
            missing: why there is no report of a model.
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
        """Take in that ``name`` cannot be started, and refuse who waits for it."""
        self.seen[name].enter(state, self.now(), why)
        self._end(self.seen[name], Unavailable(FAILED.format(name), RETRY_S))

    def progress(self, name: str) -> str:
        """Such as "42 %", of what its recorded start took; empty if it does not start, or that is unknown."""
        model, seen = self.models.get(name), self.seen.get(name)
        if model is None or not model.start_s or seen is None or seen.state != "starting":
            return ""
        return f"{min(99, int(100 * (self.now() - seen.since) / model.start_s))} %"

    def view(self) -> dict[str, dict[str, Any]]:
        """What is known of each model, for people; times are seconds from then to now."""
        now, found = self.now(), {}
        for name, seen in self.seen.items():
            view: dict[str, Any] = {"state": seen.state, "why": seen.why, "progress": self.progress(name)}
            view |= {"waiting": len(seen.waiting), "in_flight": len(seen.in_flight)}
            view["last_used_s"] = None if seen.last_used is None else now - seen.last_used
            found[name] = view
        return found

    def _seen(self, name: str) -> Seen:
        if name not in self.seen:
            raise Unavailable(f"the gateway does not know {name}: sparkcluster up INVENTORY tells it", status=404)
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
            # An engine that answers serves on while its guard restarts.
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

    def _end(self, seen: Seen, refused: Unavailable | None = None) -> None:
        """End the wait of all who wait: admitted, or ``refused``."""
        waiting, seen.waiting = seen.waiting, {}
        if waiting and refused is None:
            seen.in_flight.update(waiting)
            seen.last_used = self.now()
        for request in waiting:
            request.end(refused)
            if request.by_hand:
                self.leave(request)
