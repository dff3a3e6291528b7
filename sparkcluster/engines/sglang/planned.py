"""``max-total-tokens: auto``: tokens for ``max-running-requests`` requests of full context.

A model on a node with other models uses ``auto``. Otherwise SGLang would allocate a share of the memory that is free
when it starts, which depends on the other models. ``mem-fraction-static`` remains an upper limit of the memory; it is
set high, so that the number of tokens decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from sparkcluster.engines.sglang.flags import arguments
from sparkcluster.engines.sglang.memory import AUTO, CONCURRENT, FRACTION, REQUESTS, SLOTS, STATES, TOKENS, need
from sparkcluster.engines.words import number
from sparkcluster.errors import PlanError, UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.fit.source import Source
from sparkcluster.spec import Playbook, Spec
from sparkcluster.topology.model import Topology


def beside_others(playbook: Playbook, chosen: Collection[str] = ()) -> Playbook:
    """Implements ``Engine.beside_others``.

    Kept: a fraction that the inventory sets, and the playbook's ``max-total-tokens``. Replaced: the playbook's
    fraction, since it would be a share of the memory that other models leave free.
    """
    args, kept = arguments(playbook), {key.replace("_", "-") for key in chosen}
    if playbook.command is not None or f"args.{FRACTION}" in kept:
        return playbook
    tokens = {} if TOKENS in args else {TOKENS: AUTO, REQUESTS: number(args, REQUESTS, CONCURRENT)}
    more = {FRACTION: 0.9, **tokens}
    return playbook.model_copy(update={"args": {**args, **more}})


def planned(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> Spec:  # noqa: ARG001 - the interface's
    """Implements ``Engine.planned``.

    Raises:
        PlanError: the model is on no node yet, or unknown; or a key is set, and a complete ``command`` cannot take it.
    """
    playbook, args = spec.playbook, arguments(spec.playbook)
    if playbook.command is not None and spec.inventory.api.key is not None:
        message = "SGLang reads its key from an argument, for which a complete `command` has no place"
        raise PlanError(message, step="plan", hint="write its arguments under args, or remove api.key")
    if args.get(TOKENS) != AUTO:
        return spec
    configs = [found.config for name in sorted(facts) if (found := read(facts[name].weights)) and found.config]
    hint = f"sparkcluster stage INVENTORY weights, if the model is on no node yet; or write a number for {TOKENS}"
    if not configs:
        raise PlanError(f"{TOKENS}: auto needs config.json of {playbook.model.label}", step="plan", hint=hint)
    try:
        each = need(playbook, Source(playbook.model.label, configs[0]))
    except UsageError as error:
        raise PlanError(error.message, step="plan", hint=hint) from None
    requests = number(args, REQUESTS, CONCURRENT)
    computed: dict[str, Any] = {TOKENS: requests * each.context, REQUESTS: requests}
    if each.state_bytes:
        computed[STATES] = number(args, STATES, SLOTS * requests)
    return dataclasses.replace(spec, playbook=playbook.model_copy(update={"args": {**args, **computed}}))
