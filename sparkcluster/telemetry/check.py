"""The check of all nodes and models: facts, a token from groups where one is due, the gateway, and findings."""

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
"""How long a node may take to answer; a node that hangs is not asked again until that call has ended."""
_LOGS = here("sparkcluster doctor INVENTORY", "reads the logs for the cause")

Draw = Callable[[View, Sequence[Finding]], list[list[list[str]]]]
"""Draws a cluster as lines of parts, each a text and its style."""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check, by cluster.

    Attributes:
        at_s: when it ended, by ``clock_s`` of the samples.
        views: as ``examine`` makes them.
        replies: by group, for groups that were asked for a token.
        findings: most severe first; a finding about a node that several models share is listed with the first one.
        drawings: None without ``draw``.
        gateway: the gateway's part of ``status``; None without a gateway.
    """

    at_s: float
    views: dict[str, View]
    replies: dict[str, dict[str, Reply]]
    findings: dict[str, tuple[Finding, ...]]
    drawings: dict[str, list[list[list[str]]] | None]
    gateway: dict[str, Any] | None


@dataclasses.dataclass(slots=True)
class _Asked:
    """A group that was asked: its answer, its ranks then, and its generated tokens at the last check, with ours."""

    reply: Reply
    ranks: Ranks
    generated: float | None = None


def whole(specs: Sequence[Spec]) -> Spec:
    """One spec with the nodes of all ``specs`` of an inventory; everything else is from the first."""
    inventory = specs[0].inventory
    nodes = {each.label: each for spec in specs for each in spec.inventory.nodes}
    update = {"nodes": list(nodes.values()), "groups": []}
    return dataclasses.replace(specs[0], inventory=inventory.model_copy(update=update))


class Checker:
    """Checks the models ``specs`` of one inventory; ``draw`` draws each.

    One check runs at a time. A call that does not end in time counts as unanswered and is not repeated until it has
    ended; a node that the sampler has lost counts as unanswered too.
    """

    def __init__(self, fleet: Fleet, specs: Sequence[Spec], draw: Draw | None = None) -> None:
        self._fleet, self._specs, self._draw = fleet, specs, draw
        self._whole = whole(specs)
        self._also = specs if specs[0].model else ()
        self._probes: dict[str, Calls[Answer]] = {}
        self._calls: dict[str, Calls[Reply]] = {}
        self._asked: dict[str, _Asked] = {}

    def see(self, lost: Mapping[str, SparkclusterError]) -> tuple[View, dict[str, View]]:
        """The view of all nodes except those whose connection is ``lost``, and the view of each model by cluster."""
        hung = [name for name, calls in self._probes.items() if name in calls.pending()]
        silent: dict[str, SparkclusterError] = {
            # a node that only lost its sampling program can be asked
            **{name: error for name, error in lost.items() if not isinstance(error, CommandFailed | CommandTimeout)},
            **{name: HostLost("", node=name) for name in hung},
        }
        names = [name for name in self._fleet.names if name not in silent]
        calls = begin(self._fleet, self._whole, names, kernel_log=True, also=self._also)
        self._probes |= dict.fromkeys(names, calls)
        found = collect_facts(self._fleet, self._whole, probes=calls, limit_s=PROBE_S, also=self._also)
        found.errors.update(silent)
        found.errors.update({name: self._without_lost(name, error) for name, error in found.errors.items()})
        views = {}
        for spec, every in zip(self._specs, found.also or (found.facts,), strict=True):
            labels = [node.label for node in spec.inventory.nodes]
            facts = {name: every[name] for name in labels if name in found.facts}
            gone = {name: found.errors[name] for name in labels if name in found.errors}
            views[spec.inventory.cluster] = examine(spec, Collected(facts, gone), facts)
        return View(self._whole, found, found.facts), views

    def _without_lost(self, name: str, error: SparkclusterError) -> SparkclusterError:
        """The error to show for a node that gave ``error``: a time-out or a lost connection here is not the cause."""
        if not isinstance(error, CommandTimeout | HostLost):
            return error
        host = next(node.host for node in self._whole.inventory.nodes if node.label == name)
        return HostTimeout(f"{name}: no answer from {host}", node=name, hint=f"ping {host}, and check its power")

    def check(self, base: View, views: Mapping[str, View], sampler: Sampler) -> CheckResult:
        """Complete the check: ask the groups of ``views``, and diagnose them; ``base`` is the view of all nodes."""
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
        return CheckResult(clock_s(), dict(views), answers, findings, drawings, door)

    def _begin_asking(self, view: View, sampler: Sampler) -> Calls[Reply]:
        """Start to request a token from each group of ``view`` that should serve and is due."""
        due = [name for name in status.running(view) if self._is_due(view, name, sampler)]
        calls = begin_asking(self._fleet, view, due, status.STATUS_LIMIT_S, 1)
        self._calls |= {status.key(view, name): calls for name in due}
        return calls

    def _answers(self, view: View, calls: Calls[Reply]) -> dict[str, Reply]:
        """The current answers by group, including those of ``calls``."""
        ranks = view.ranks.groups()
        for name, reply in replies(calls, view, status.STATUS_LIMIT_S * 2).items():
            key = status.key(view, name)
            before = self._asked[key].generated if key in self._asked else None
            self._asked[key] = _Asked(reply, ranks[name], None if before is None else before + (reply.tokens or 0))
        known = {name: self._asked.get(status.key(view, name)) for name in status.running(view)}
        return {name: asked.reply for name, asked in known.items() if asked}

    def _is_due(self, view: View, name: str, sampler: Sampler) -> bool:
        """Whether a token must be requested from a group to know whether it serves.

        Not if it has answered before and its counters show tokens since the last check: every request takes a place in
        its batch and changes its figures.
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
    """``findings`` without ``known`` findings about a node; adds a hint to read the logs where they have the cause."""
    for each in findings:
        place = (each.code, each.node or "", each.summary)
        if each.node is None or place not in known:
            known.add(place)
            more = (_LOGS,) if each.code in {"RUN-002", "RUN-005"} else ()
            yield dataclasses.replace(each, remedies=(*more, *each.remedies))
