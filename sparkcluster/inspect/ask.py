"""Prompts and streamed answers, requested on the head of a group itself."""

from __future__ import annotations

import dataclasses
from typing import Any

from sparkcluster.endpoint.ask import Show
from sparkcluster.endpoint.ask import ask as ask_endpoint
from sparkcluster.endpoint.find import RESTART, Endpoint
from sparkcluster.endpoint.judge import lacks_content
from sparkcluster.errors import EmptyAnswer, NotServing, PromptTooLong, SparkclusterError, UsageError
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import status
from sparkcluster.inspect.cluster import View, see
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import REASONING_TOKENS, Sampling, Verify

PARSER = "sparkcluster lint INVENTORY   checks whether reasoning-parser in the playbook fits the model"


def document(reply: Reply) -> dict[str, Any]:
    """The answer for other programs."""
    return {"group": reply.group, **reply.done, "tokens_per_s": reply.tokens_per_s}


def speed(reply: Reply) -> str:
    """Tokens, time to first token and decode speed in one line."""
    parts = [f"{reply.tokens} tokens"] if reply.tokens is not None else []
    parts += [f"first after {reply.ttft_s:.2f} s"] if reply.ttft_s is not None else []
    parts += [f"{reply.tokens_per_s:.1f} tokens/s"] if reply.tokens_per_s else []
    return ", ".join(parts)


def cut(reply: Reply) -> str | None:
    """That an answer ended at the limit of tokens, and what to do about it; None where it did not."""
    more = "the answer ended at its limit: --max-tokens N allows more, up to max-model-len in the playbook"
    return more if reply.finish == "length" else None


@dataclasses.dataclass
class Conversation:
    """Prompts and answers of one group; its endpoint is looked for again after it did not answer.

    It is sampled as ``request`` says in the playbook that serves. An answer has at most ``max_tokens`` tokens; without
    it as many as ``request`` says, else ``REASONING_TOKENS``, and fewer where the context leaves no more.

    Attributes:
        group: its name; None for the first.
        system: the system prompt.
        messages: what was said so far, the system prompt first.
        endpoint: of the group that answers; None before the first question, and after a failure.
    """

    fleet: Fleet
    spec: Spec
    group: str | None
    max_tokens: int | None
    system: str | None = None
    endpoint: Endpoint | None = None
    verify: Verify = dataclasses.field(default_factory=Verify)

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, with the system prompt alone."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def find(self) -> Endpoint:
        """The endpoint of the group, from what its head has recorded.

        Raises:
            NotServing: no release is recorded, or none of it runs.
            UsageError: there is no such group.
        """
        if self.endpoint is not None:
            return self.endpoint
        view, name = serving(self.fleet, self.spec, self.group)
        endpoint, group = view.endpoints[name], view.groups[name]
        if group.verify.kind != "chat":
            why = f"{self.spec.inventory.called(name)} serves a model for {group.verify.kind}, which writes no text"
            raise UsageError(why, hint=f"clients ask it at {endpoint.url}/{group.verify.kind}")
        told = {key: getattr(group.request, key) for key in Sampling.model_fields}
        self.verify = group.verify.model_copy(
            update={**told, "max_tokens": group.request.max_tokens or REASONING_TOKENS}
        )
        self.endpoint = endpoint
        return endpoint

    def ask(self, prompt: str, show: Show) -> Reply:
        """Stream the answer to ``prompt``; every part goes to ``show`` as (content or reasoning, text).

        Prompt and answer become part of the conversation, after Ctrl-C as far as the answer came.

        Raises:
            NotServing: as ``find``; or it does not answer.
            EmptyAnswer: nothing came but reasoning.
            PromptTooLong: the conversation does not fit in the model's context.
            UsageError: as ``find``.
        """
        endpoint = self.find()
        heard: list[str] = []

        def listen(kind: str, text: str) -> None:
            if kind == "content":
                heard.append(text)
            show(kind, text)

        question = {"role": "user", "content": prompt}
        host = self.fleet.hosts[endpoint.head]
        asked = [*self.messages, question]
        try:
            reply = ask_endpoint(host, endpoint, self.verify, max_tokens=self.max_tokens, show=listen, messages=asked)
        finally:
            # an answer without a question, or two questions in a row, are what some chat templates refuse
            if heard:
                self.messages += [question, {"role": "assistant", "content": "".join(heard)}]
        if reply.problem == "too-long":
            hint = "shorten the prompt, lower --max-tokens, or raise max-model-len in the playbook"
            raise PromptTooLong(f"the prompt does not fit in the model's context: {reply.message}", hint=hint)
        if why := status.problem(reply):
            self.endpoint = None
            hint = f"{RESTART}   starts its ranks with the key of the inventory"
            if reply.problem != "unauthorized":
                raise NotServing(why, node=endpoint.head, step="ask", hint="sparkcluster doctor INVENTORY")
            raise NotServing(reply.message or why, node=endpoint.head, step="ask", hint=hint)
        if empty := lacks_content(reply):
            show("reasoning", "\n")  # what is said next is no part of it
            raise EmptyAnswer(empty, node=endpoint.head, step="ask", hint=cut(reply) or PARSER)
        return reply


def serving(fleet: Fleet, spec: Spec, group: str | None) -> tuple[View, str]:
    """The cluster, and the name of the recorded group to ask: ``group``, or the first.

    Raises:
        NotServing: no release is recorded, or none of it runs.
        UsageError: there is no such group.
    """
    view = see(fleet, spec)
    if not view.recorded:
        raise _nothing_serves(view)
    name = group or next(iter(view.endpoints))
    if name not in view.endpoints:
        raise UsageError(f"there is no group {name}", hint=f"its groups: {', '.join(view.endpoints)}")
    if view.endpoints[name].head not in view.facts:
        raise _nothing_serves(view)
    return view, name


def _nothing_serves(view: View) -> SparkclusterError:
    """Why there is no group to ask: no rank runs that the newest release recorded."""
    for error in view.collected.errors.values():
        return error
    found = status.document(view, {}, {}, {})
    why = f": {found['why']}" if found["why"] else ""
    return NotServing(f"{found['cluster']} is {found['state']}{why}", hint=found["next"])
