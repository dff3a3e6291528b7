"""One streamed completion, requested on the head itself."""

from __future__ import annotations

import time
from typing import Any

from sparkcluster.endpoint.ask import Show
from sparkcluster.endpoint.ask import ask as ask_endpoint
from sparkcluster.endpoint.find import recorded_endpoints
from sparkcluster.errors import NotServing, SparkclusterError, UsageError
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import state
from sparkcluster.plan.records import (
    ClusterRanks,
    cluster_ranks,
    current_lease,
    recorded_groups,
    recorded_release,
    unreadable,
)
from sparkcluster.probing.collect import Collected, collect_facts
from sparkcluster.spec import Spec


def document(reply: Reply) -> dict[str, Any]:
    """The answer for other programs."""
    return {"group": reply.group, **reply.done, "tokens_per_s": reply.tokens_per_s}


def speed(reply: Reply) -> str:
    """Tokens, time to first token and decode speed in one line."""
    parts = [f"{reply.tokens} tokens"] if reply.tokens is not None else []
    parts += [f"first after {reply.ttft_s:.2f} s"] if reply.ttft_s is not None else []
    parts += [f"{reply.tokens_per_s:.1f} tokens/s"] if reply.tokens_per_s else []
    return ", ".join(parts)


def ask(
    fleet: Fleet,
    spec: Spec,
    prompt: str,
    show: Show,
    *,
    group: str | None,
    max_tokens: int,
) -> Reply:
    """Stream one completion; every part goes to ``show`` as (content or reasoning, text).

    Raises:
        NotServing: no release is recorded, or it does not answer.
        UsageError: there is no such group.
    """
    collected = collect_facts(fleet, spec)
    latest = recorded_release(spec.inventory, collected.facts)
    present = cluster_ranks(spec.inventory.cluster, collected.facts)
    recorded = state.running_record(present, latest)
    if not recorded:
        raise _nothing_serves(spec, collected, present)
    found = recorded_endpoints(recorded)
    name = group or next(iter(found))
    if name not in found:
        raise UsageError(f"there is no group {name}", hint=f"its groups: {', '.join(found)}")
    endpoint = found[name]
    if endpoint.head in collected.errors:
        raise collected.errors[endpoint.head]
    if endpoint.head not in collected.facts:
        raise NotServing(
            f"the head of {name}, {endpoint.head}, is no longer in the inventory", node=endpoint.head, step="ask"
        )
    verify = recorded_groups(recorded)[name].verify.model_copy(update={"prompt": prompt, "max_tokens": max_tokens})
    reply = ask_endpoint(fleet.hosts[endpoint.head], endpoint, verify, show=show)
    if reply.problem:
        raise NotServing(
            f"the model does not answer: {reply.message}",
            node=endpoint.head,
            step="ask",
            hint=f"sparkcluster status {spec.inventory_path}",
        )
    return reply


def _nothing_serves(spec: Spec, collected: Collected, present: ClusterRanks) -> SparkclusterError:
    """Why there is no group to ask: no rank runs that the newest release recorded."""
    for error in collected.errors.values():
        return error
    lease = current_lease(collected.facts)
    starting = state.is_starting(lease)
    groups = state.group_states({}, present, (), starting=starting)
    blind = bool(unreadable(collected.facts))
    word = state.cluster_state(groups, present, blind=blind, starting=starting, reached=True)
    why = {state.ORPHANED: state.left_by(collected.facts)}.get(word)
    if word == state.STARTING and lease is not None:
        why = lease.describe(spec.inventory.cluster, time.time())
    text = f"{spec.inventory.cluster} is {word}"
    return NotServing(f"{text}: {why}" if why else text, step="ask", hint=state.next_command(word))
