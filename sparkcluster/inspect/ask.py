"""Prompts and streamed answers, requested on the head node of a group."""

from __future__ import annotations

import dataclasses
from typing import Any

from sparkcluster import engines
from sparkcluster.endpoint.ask import Show
from sparkcluster.endpoint.ask import ask as ask_endpoint
from sparkcluster.endpoint.find import RESTART, Endpoint
from sparkcluster.endpoint.judge import lacks_content
from sparkcluster.errors import EmptyAnswer, NotServing, PromptTooLong, SparkclusterError, UsageError
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fleet import Fleet, all_values
from sparkcluster.inspect import status
from sparkcluster.inspect.cluster import View, see
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import REASONING_TOKENS, Sampling, Verify


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
    """A note if the answer was cut off at the token limit, with the remedy; else None."""
    more = "the answer was cut off at the token limit; --max-tokens N raises it, up to the context of the model"
    return more if reply.finish == "length" else None


@dataclasses.dataclass
class Conversation:
    """Prompts and answers of one group; its endpoint is looked up again after a failure.

    Sampling follows ``request`` of the playbook that serves. An answer has at most ``max_tokens`` tokens, by default
    as many as ``request`` says or ``REASONING_TOKENS``, and fewer if the context has no room.

    Attributes:
        group: name of the group; None for the first.
        system: the system prompt.
        messages: the conversation so far, starting with the system prompt.
        endpoint: of the group; None before the first question, and after a failure.
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
        """Start a new conversation, with only the system prompt."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def find(self) -> Endpoint:
        """The endpoint of the group, as recorded on its head.

        Raises:
            NotServing: no release is recorded, or none of its ranks runs.
            UsageError: there is no such group.
        """
        if self.endpoint is not None:
            return self.endpoint
        view, name = serving(self.fleet, self.spec, self.group)
        endpoint, group = view.endpoints[name], view.groups[name]
        if group.verify.kind != "chat":
            why = f"{self.spec.inventory.called(name)} serves a model for {group.verify.kind}, which generates no text"
            raise UsageError(why, hint=f"send requests to {endpoint.url}/{group.verify.kind}")
        sampling = {key: getattr(group.request, key) for key in Sampling.model_fields}
        self.verify = group.verify.model_copy(
            update={**sampling, "max_tokens": group.request.max_tokens or REASONING_TOKENS}
        )
        self.endpoint = endpoint
        return endpoint

    def ask(self, prompt: str, show: Show) -> Reply:
        """Stream the answer to ``prompt``; every part goes to ``show`` as (content or reasoning, text).

        Prompt and answer are added to the conversation; after Ctrl-C, the part of the answer that arrived.

        Raises:
            NotServing: as ``find``; or the endpoint does not answer.
            EmptyAnswer: the answer has only reasoning.
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
            # some chat templates refuse an answer without a question, or two questions in a row
            if heard:
                self.messages += [question, {"role": "assistant", "content": "".join(heard)}]
        engine = engines.engine(self.spec.playbook.engine)
        if reply.problem == "too-long":
            argument = engine.common_arguments.get("context", "the context")
            hint = f"shorten the prompt, lower --max-tokens, or raise {argument} in the playbook"
            raise PromptTooLong(f"the prompt does not fit in the model's context: {reply.message}", hint=hint)
        if why := status.problem(reply):
            self.endpoint = None
            hint = f"{RESTART}   restarts its ranks with the inventory's key"
            if reply.problem != "unauthorized":
                raise NotServing(why, node=endpoint.head, step="ask", hint="sparkcluster doctor INVENTORY")
            raise NotServing(reply.message or why, node=endpoint.head, step="ask", hint=hint)
        if empty := lacks_content(reply):
            show("reasoning", "\n")  # separates the error from the reasoning
            parser = engine.api_features(self.spec.playbook).remedies.get("reasoning")
            raise EmptyAnswer(empty, node=endpoint.head, step="ask", hint=cut(reply) or parser)
        return reply


def serving(fleet: Fleet, spec: Spec, group: str | None) -> tuple[View, str]:
    """The cluster, and the name of the recorded group to ask: ``group``, or the first.

    Raises:
        NotServing: no release is recorded, or none of its ranks runs.
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
    """Why there is no group to ask: no rank of the newest release runs."""
    all_values(view.unread)
    found = status.document(view, {}, {}, {})
    why = f": {found['why']}" if found["why"] else ""
    return NotServing(f"{found['cluster']} is {found['state']}{why}", hint=found["next"])
