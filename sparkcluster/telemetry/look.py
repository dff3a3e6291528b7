"""A look at all nodes and models: facts, a token of each group where one is due, the gateway, and what is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sparkcluster.errors import CommandFailed, CommandTimeout, HostLost, HostTimeout, SparkclusterError
from sparkcluster.facts.collect import Collected, collect_facts
from sparkcluster.facts.probe import Answer, begin
from sparkcluster.facts.running import Reply, Running
from sparkcluster.findings import Finding, here
from sparkcluster.hosts.fleet import Calls, Fleet
from sparkcluster.inspect import gateway, status
from sparkcluster.inspect.cluster import View
from sparkcluster.inspect.doctor import diagnose
from sparkcluster.inspect.observing import begin_asking, replies
from sparkcluster.inspect.preflight import examine
from sparkcluster.inspect.signals import FRESH_S, observation
from sparkcluster.inspect.vitals import Sampler, clock_s
from sparkcluster.plan.release_record import Ranks
from sparkcluster.spec import Spec

PROBE_S = 10.0
"""What a node has to answer in; one that hangs is not asked again before that call has ended."""
_LOGS = here("sparkcluster doctor INVENTORY", "reads the logs, which say why")

Draw = Callable[[View, Sequence[Finding]], list[list[list[str]]]]
"""Draws a cluster: lines, each of parts, which are text and style."""


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """What a look found, by cluster.

    Attributes:
        at_s: when it ended, by ``clock_s`` of the samples.
        views: as ``examine`` makes them.
        replies: by group, of those of which a token was requested.
        findings: the most severe first; what is wrong with a node that several models have is with the first of them.
        drawings: None where nothing draws.
        gateway: what ``status`` says of it; None without one.
    """

    at_s: float
    views: dict[str, View]
    replies: dict[str, dict[str, Reply]]
    findings: dict[str, tuple[Finding, ...]]
    drawings: dict[str, list[list[list[str]]] | None]
    gateway: dict[str, Any] | None


@dataclasses.dataclass(slots=True)
class _Asked:
    """A group that was asked: its answer and ranks then, and the tokens that it had made at the last look, ours too."""

    reply: Reply
    ranks: Ranks
    generated: float | None = None


def whole(specs: Sequence[Spec]) -> Spec:
    """One spec with the nodes of all ``specs`` of an inventory, which is otherwise the first."""
    inventory = specs[0].inventory
    nodes = {each.label: each for spec in specs for each in spec.inventory.nodes}
    update = {"nodes": list(nodes.values()), "groups": []}
    return dataclasses.replace(specs[0], inventory=inventory.model_copy(update=update))


class Looker:
    """Looks at the models ``specs`` of one inventory; ``draw`` makes the drawing of each.

    It begins one look at a time. What does not end in time is not asked again until it has, and is as if it had not
    answered; so is a node that is lost to the sampler.
    """

    def __init__(self, fleet: Fleet, specs: Sequence[Spec], draw: Draw | None = None) -> None:
        self._fleet, self._specs, self._draw = fleet, specs, draw
        self._whole = whole(specs)
        self._also = specs if specs[0].model else ()
        self._probes: dict[str, Calls[Answer]] = {}
        self._calls: dict[str, Calls[Reply]] = {}
        self._asked: dict[str, _Asked] = {}

    def see(self, lost: Mapping[str, SparkclusterError]) -> tuple[View, dict[str, View]]:
        """All nodes but those to which the connection is ``lost``; and by cluster those of each model."""
        hung = [name for name, calls in self._probes.items() if name in calls.pending()]
        silent: dict[str, SparkclusterError] = {
            # one whose samples alone ended can be asked
            **{name: error for name, error in lost.items() if not isinstance(error, CommandFailed | CommandTimeout)},
            **{name: HostLost("", node=name) for name in hung},
        }
        names = [name for name in self._fleet.names if name not in silent]
        calls = begin(self._fleet, self._whole, names, kernel_log=True, also=self._also)
        self._probes |= dict.fromkeys(names, calls)
        found = collect_facts(self._fleet, self._whole, probes=calls, limit_s=PROBE_S, also=self._also)
        found.errors.update(silent)
        found.errors.update({name: self._told(name, error) for name, error in found.errors.items()})
        views = {}
        for spec, every in zip(self._specs, found.also or (found.facts,), strict=True):
            labels = [node.label for node in spec.inventory.nodes]
            facts = {name: every[name] for name in labels if name in found.facts}
            gone = {name: found.errors[name] for name in labels if name in found.errors}
            views[spec.inventory.cluster] = examine(spec, Collected(facts, gone), facts)
        return View(self._whole, found, found.facts), views

    def _told(self, name: str, error: SparkclusterError) -> SparkclusterError:
        """What is said of a node that gave ``error``: what broke off or took too long here says nothing of why."""
        if not isinstance(error, CommandTimeout | HostLost):
            return error
        host = next(node.host for node in self._whole.inventory.nodes if node.label == name)
        return HostTimeout(f"{name}: no answer from {host}", node=name, hint=f"ping {host}, and check its power")

    def look(self, base: View, views: Mapping[str, View], sampler: Sampler) -> Look:
        """What there is to be said of ``views``, and of ``base``, as ``see`` has just made them."""
        began_s, findings, known = sampler.now_s(), dict[str, tuple[Finding, ...]](), set[tuple[str, str, str]]()
        calls = {cluster: self._begin_asking(view, sampler) for cluster, view in views.items()}
        answers = {cluster: self._answers(view, calls[cluster]) for cluster, view in views.items()}
        for cluster, view in views.items():
            seen = {name: observation(view, name, sampler.samples[name], began_s) for name in view.facts}
            running = Running(seen, answers[cluster], view.newest, view.lease)
            findings[cluster] = tuple(_once(diagnose(view, running), known))
        drawings = {name: self._draw(view, findings[name]) if self._draw else None for name, view in views.items()}
        behind = self._specs[0].gateway_node in self._fleet.names
        door = gateway.document(self._fleet, self._specs, base) if behind else None
        return Look(clock_s(), dict(views), answers, findings, drawings, door)

    def _begin_asking(self, view: View, sampler: Sampler) -> Calls[Reply]:
        """Begin to request a token of each group of ``view`` that should serve, and whose answer is due."""
        due = [name for name in status.running(view) if self._is_due(view, name, sampler)]
        calls = begin_asking(self._fleet, view, due, status.STATUS_LIMIT_S, 1)
        self._calls |= {status.key(view, name): calls for name in due}
        return calls

    def _answers(self, view: View, calls: Calls[Reply]) -> dict[str, Reply]:
        """The answers that count now, by group, with those of ``calls``."""
        ranks = view.ranks.groups()
        for name, reply in replies(calls, view, status.STATUS_LIMIT_S * 2).items():
            key = status.key(view, name)
            before = self._asked[key].generated if key in self._asked else None
            self._asked[key] = _Asked(reply, ranks[name], None if before is None else before + (reply.tokens or 0))
        known = {name: self._asked.get(status.key(view, name)) for name in status.running(view)}
        return {name: asked.reply for name, asked in known.items() if asked}

    def _is_due(self, view: View, name: str, sampler: Sampler) -> bool:
        """Whether a token has to be requested of a group to know whether it serves.

        Not of one that has answered, and has made tokens since the last look, as its counters say: each request takes a
        place in its batch, and is in its figures.
        """
        key = status.key(view, name)
        asked = self._asked.get(key)
        if key in self._calls and name in self._calls[key].pending():
            return False
        if asked is None or asked.reply.problem or asked.ranks != view.ranks.groups()[name]:
            return True
        series, since_s = sampler.samples.get(view.endpoints[name].head, ()), sampler.now_s() - FRESH_S
        readings = [each.engines[key].counts for each in series if key in each.engines and each.at_s > since_s]
        before, asked.generated = asked.generated, readings[-1].get("generated") if readings else None
        return asked.generated is None or before == asked.generated


def _once(findings: Sequence[Finding], known: set[tuple[str, str, str]]) -> Iterator[Finding]:
    """``findings`` but those about a node that are ``known``, which grows; of what logs explain, where to read them."""
    for each in findings:
        place = (each.code, each.node or "", each.summary)
        if each.node is None or place not in known:
            known.add(place)
            more = (_LOGS,) if each.code in {"RUN-002", "RUN-005"} else ()
            yield dataclasses.replace(each, remedies=(*more, *each.remedies))
