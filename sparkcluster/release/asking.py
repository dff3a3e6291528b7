"""One streamed completion of what serves, asked from the head itself."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from sparkcluster.errors import NotServing, UsageError
from sparkcluster.gather import gather
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.program import stream
from sparkcluster.launch.verify import Answer, answer, ask_request
from sparkcluster.release.records import holding, newest
from sparkcluster.release.serving import recorded_endpoint, recorded_groups
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import Verify


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """An answer, and where it came from."""

    group: str
    answer: Answer
    done: dict[str, Any]

    @property
    def document(self) -> dict[str, Any]:
        """The answer for other programs."""
        return {"group": self.group, **self.done, "tokens_per_s": self.answer.tokens_per_s}

    @property
    def speed(self) -> str:
        """Tokens, time to first token and decode speed in one line."""
        parts = [f"{self.answer.tokens} tokens"] if self.answer.tokens is not None else []
        parts += [f"first after {self.answer.ttft_s:.2f} s"] if self.answer.ttft_s is not None else []
        parts += [f"{self.answer.tokens_per_s:.1f} tokens/s"] if self.answer.tokens_per_s else []
        return ", ".join(parts)


def ask(
    fleet: Fleet,
    spec: Spec,
    prompt: str,
    show: Callable[[str, str], None],
    *,
    group: str | None,
    max_tokens: int,
) -> Asked:
    """Stream one completion; every piece goes to ``show`` as (content or reasoning, text).

    Raises:
        NotServing: nothing is recorded, or it does not answer.
        UsageError: there is no such group.
    """
    gathered = gather(fleet, spec)
    known = newest(gathered.facts.values())
    if known is None or not holding(spec.inventory.cluster, gathered.facts).hashes():
        for error in gathered.errors.values():
            raise error
        raise NotServing(f"{spec.inventory.cluster} is down", hint=f"sparkcluster up {spec.inventory_path}")
    heads = recorded_groups(known.record)
    name = group or next(iter(heads))
    if name not in heads:
        raise UsageError(f"there is no group {name}", hint=f"its groups: {', '.join(heads)}")
    if heads[name] not in fleet.hosts:
        raise NotServing(f"the head of {name}, {heads[name]}, is not in the inventory any more")
    verify = Verify.model_validate(
        {**known.record.get("playbook", {}).get("verify", {}), "prompt": prompt, "max_tokens": max_tokens}
    )
    request = ask_request(recorded_endpoint(known.record, name), verify)
    with stream(fleet.hosts[heads[name]], "ask", request) as running:
        for line in running.lines(verify.timeout_s + 10):
            document = json.loads(line)
            if "error" in document:
                raise NotServing(
                    f"the model does not answer: {document['error'].get('message')}",
                    node=heads[name],
                    hint=f"sparkcluster status {spec.inventory_path}",
                )
            if "done" in document:
                return Asked(name, answer(document["done"]), document["done"])
            for kind, key in (("content", "text"), ("reasoning", "reasoning")):
                if document.get(key):
                    show(kind, document[key])
    raise NotServing("the answer broke off", node=heads[name], hint=f"sparkcluster status {spec.inventory_path}")
