"""Settings for each client program: ``clients.toml``, filled with the values of the API. Pure."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from sparkcluster.endpoint.connection import AGENT_CONTEXT, Connection
from sparkcluster.printable import shell, word
from sparkcluster.spec.playbook import REASONING_TOKENS

_VALUE = re.compile(r"\{(\w+)(?::(sh|json))?\}")
# Not arguments of the OpenAI SDK.
_EXTRA = ("top_k", "chat_template_kwargs")
_PATHS = {"chat": "chat/completions", "embeddings": "embeddings", "rerank": "rerank"}
_ASKED: dict[str, dict[str, object]] = {
    "chat": {"messages": [{"role": "user", "content": "Hello"}]},
    "embeddings": {"input": "Hello"},
    "rerank": {"query": "Hello", "documents": ["Good morning", "Goodbye"]},
}


@dataclasses.dataclass(frozen=True, slots=True)
class Client:
    """A program that uses the API; ``clients.toml`` explains each attribute."""

    title: str
    about: str
    where: str
    source: str
    block: str
    notes: str
    agent: bool = False
    reasoning: bool = False
    messages: bool = False
    sends: bool = False
    watches: bool = False
    more: str = ""
    kinds: Sequence[str] = ()

    def lacking(self, connection: Connection) -> list[Connection]:
        """Other models of the inventory that it could use and that are not in its block."""
        return [
            each for each in connection.siblings if each.kind not in self.kinds and (self.sends or each.kind == "chat")
        ]


CLIENTS = {
    name: Client(**section)
    for name, section in tomllib.loads(Path(__file__).with_name("clients.toml").read_text(encoding="utf-8")).items()
}


def warnings(client: Client, connection: Connection) -> list[str]:
    """Features that ``client`` needs and the API lacks, each with a remedy."""
    if client.watches:
        return []
    features, remedies = connection.features, connection.features.remedies

    def remedy(feature: str) -> str:
        return remedies.get(feature, "use another engine")

    found = []
    if client.messages and features.messages is not True:
        have = "which the image lacks" if features.messages is False else "which the image may lack"
        found.append(f"{client.title} uses the Messages API, {have}: {remedy('messages')}")
    if client.messages and connection.without_slash is None:
        short = connection.model.rpartition("/")[2]
        found.append(
            f"{client.title} does not accept a slash in a model name: write served_name: {short} in the playbook, "
            f"or --set served_name={short}, here and with up"
        )
    if client.agent and features.tools is False:
        found.append(f"requests that offer tools fail: {remedy('tools')}")
    if (client.agent or client.reasoning) and features.reasoning is False and connection.kind == "chat":
        found.append(f"reasoning will be part of the answer: {remedy('reasoning')}")
    if client.agent and (features.context or 0) < AGENT_CONTEXT:
        has = f"has {features.context:,} tokens" if features.context else "has an unknown length"
        found.append(f"the context {has}, and an agent needs {AGENT_CONTEXT:,}: {remedy('context')}")
    if connection.key is None and not connection.local:
        found += ["the API is open to the network without a key; create one with:", "  sparkcluster key INVENTORY"]
    return found


def notes(client: Client, connection: Connection) -> list[str]:
    """Notes for the client, and the request settings that the playbook recommends."""
    request, found = connection.request, _filled(client.notes, connection)
    if client.watches:
        return found
    if request.body and not client.sends:
        fields = ", ".join(f"{name} {json.dumps(value)}" for name, value in request.body.items())
        found.append(f"the playbook recommends for requests: {fields}")
    if others := client.lacking(connection):
        names = ", ".join(f"--model {each.name}" for each in others)
        same = [each.model for each in others if each.url == connection.url]
        alone = f"this is only for {connection.model}; for the other models add {names}"
        found.append(f"the same address also serves {', '.join(same)}" if same else alone)
    return [*found, *([f"the playbook says: {request.note}"] if request.note else [])]


def block(client: Client, connection: Connection) -> str:
    """The text to paste."""
    chats = connection.of_kind("chat")
    more = [
        line
        for each in connection.siblings
        if each.kind in client.kinds
        for line in _filled(client.more, each, roles=_roles(each, small=each is chats[-1]))
    ]
    return "\n".join(_filled(client.block, connection, more="\n".join(more) or None))


def _roles(connection: Connection, *, small: bool) -> str:
    """Roles of a model in Continue; a model that reasons first is too slow for autocomplete."""
    if connection.kind != "chat":
        return "rerank" if connection.kind == "rerank" else "embed"
    return "chat, edit, apply" + (", autocomplete" if small and not connection.features.reasoning else "")


def _filled(template: str, connection: Connection, **also: str | None) -> list[str]:
    """The lines of ``template`` with the values of ``connection``, without lines that need a missing value."""
    known = values(connection) | also
    how: dict[str | None, Callable[[object], str]] = {"sh": word, "json": json.dumps, None: str}
    lines = template.strip("\n").split("\n") if template else []
    return [
        _VALUE.sub(lambda found: how[found[2]](known[found[1]]), line)
        for line in lines
        if all(known[name] is not None for name, _ in _VALUE.findall(line))
    ]


def values(connection: Connection) -> dict[str, object]:
    """All values for ``clients.toml``; None if there is none."""
    key, of_kind, chat = connection.key, connection.of_kind, connection.kind == "chat"
    context, output = (connection.features.context, connection.output) if chat else (None, None)
    shown = key.value if key else None
    hidden = key is not None and shown is None
    chats, embeds, ranks = of_kind("chat"), of_kind("embeddings"), of_kind("rerank")
    urls = list(dict.fromkeys(url for each in chats for url in (each.url, *each.others)))
    keys = ";".join([shown or (key.expansion if key else "none")] * len(urls))
    port = connection.root.rpartition(":")[2]
    ask = 'curl -sS -m 30 -H "Authorization: Bearer ${OPENAI_API_KEYS%%;*}" ' if key else "curl -sS -m 30 "
    short = connection.without_slash
    body = connection.request.body
    fields = {name: value for name, value in body.items() if name not in _EXTRA}
    extra = {name: body[name] for name in _EXTRA if name in body}
    fields |= {"extra_body": extra} if extra else {}
    bearer = f"Authorization: Bearer {shown or (key.expansion if key else '')}"

    def only(condition: object) -> str | None:
        return "" if condition else None

    return {
        "cluster": connection.cluster,
        "url": connection.url,
        "urls": ";".join(urls),
        "root": connection.root,
        "port": port,
        "chat": f"{connection.url}/chat/completions",
        "asked": f"{connection.url}/{_PATHS[connection.kind]}",
        "small": chats[-1].model if len(chats) > 1 else None,
        "small_custom": f"custom:{chats[-1].cluster}" if len(chats) > 1 else None,
        "several": only(len(chats) > 1),
        "embedder": embeds[0].model if embeds else None,
        "embedder_url": embeds[0].url if embeds else None,
        "ranker": ranks[0].model if ranks else None,
        "ranker_url": f"{ranks[0].url}/rerank" if ranks else None,
        "model": connection.model,
        "openai_model": f"openai/{connection.model}",
        "without_slash": short or connection.model,
        "alias": short if short != connection.model else None,
        "label": f"{connection.model} on {connection.cluster}",
        "custom": f"custom:{connection.cluster}",
        "context": context,
        "output": output,
        "input": context - output if context is not None and output is not None else None,
        "reasoning_tokens": REASONING_TOKENS,
        "variable": connection.variable,
        "key_env": key.env if key else None,
        "key_file": key.file if key else None,
        "key_command": key.command if key and hidden else None,
        "key_shell": shell("sh -c", key.command) if key and not key.env else None,
        "key_word": key.word if key else "none",
        "key_text": key.text if key else "none",
        "keys": f'"{keys}"' if hidden else word(keys),
        "shown_key": shown,
        "plain_key": shown if key else "none",
        "bearer": None if key is None else f'"{bearer}"' if hidden else word(bearer),
        "body": json.dumps({"model": connection.model, **_ASKED[connection.kind]} | body),
        "arguments": "\n".join(f"    {name}={value!r}," for name, value in fields.items()) or None,
        "inside": f"{ask}{word(f'{connection.url}/models')}",
        "local": only(connection.local),
        "is_chat": only(chat),
        "is_embeddings": only(connection.kind == "embeddings"),
        "is_rerank": only(connection.kind == "rerank"),
        "is_no_rerank": only(connection.kind != "rerank"),
        "embeds": only(embeds),
        "ranks": only(ranks),
        "remote": only(not connection.local),
        "docker_tunnel": connection.tunnel and connection.tunnel.replace("-L ", "-L 172.17.0.1:", 1),
        "on_head": only(connection.local and not connection.tunnel),
        "hidden": only(hidden),
        "unkeyed": only(key is None),
        "by_env": only(hidden and key and key.env),
        "by_file": only(hidden and key and not key.env),
        "long": only(context is not None),
        "tools": only(connection.features.tools),
        "no_tools": only(not connection.features.tools),
        "reasoning": only(connection.features.reasoning),
        "no_template_options": only(not connection.request.chat_template_kwargs),
    }
