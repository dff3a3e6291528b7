"""Programs that use the API, and what each has to be told: one pure builder for each.

What is known of a client is from its own documentation or issues, named in ``source`` and beside the line that it is
about, as of November 2026.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator

from sparkcluster.endpoint import client_blocks as blocks
from sparkcluster.endpoint.connection import AGENT_CONTEXT, Connection, completion


@dataclasses.dataclass(frozen=True, slots=True)
class Client:
    """A program that uses the API.

    Attributes:
        title: as its makers write it.
        about: what it is, in a few words.
        where: where the block goes.
        source: the documentation that the block follows.
        build: the block to paste.
        notes: what else there is to know; what begins with two blanks is to be pasted as well.
        agent: whether it offers tools, and needs a long context for them.
        reasoning: whether reasoning in the answer is in its way.
        messages: whether it uses Anthropic's Messages API.
        sends: whether its block sends what the playbook tells clients to send.
    """

    title: str
    about: str
    where: str
    source: str
    build: Callable[[Connection], str]
    notes: Callable[[Connection], Iterator[str]]
    agent: bool = False
    reasoning: bool = False
    messages: bool = False
    sends: bool = False


def warnings(client: Client, connection: Connection) -> list[str]:
    """What the API lacks for ``client``, each with what to write in the playbook, or to type."""
    features, remedies = connection.features, connection.features.remedies
    found = []
    if client.messages and features.messages is not True:
        have = "which the image does not have" if features.messages is False else "which the image may not have"
        found.append(f"{client.title} uses the Messages API, {have}: {remedies.get('messages', 'take another engine')}")
    if client.messages and blocks.claude_model(connection) is None:
        short = connection.model.rpartition("/")[2]
        found.append(
            f"{client.title} takes no model whose name has a slash: write served_name: {short} in the playbook, "
            f"or --set served_name={short}, here and with up"
        )
    if client.agent and features.tools is False:
        found.append(f"requests that offer tools fail: {remedies.get('tools', 'take another engine')}")
    if (client.agent or client.reasoning) and features.reasoning is False:
        found.append(f"reasoning will be part of the answer: {remedies.get('reasoning', 'take another engine')}")
    if client.agent and (features.context or 0) < AGENT_CONTEXT:
        has = f"has {features.context:,} tokens" if features.context else "has a length that the playbook does not say"
        found.append(
            f"the context {has}, and an agent needs {AGENT_CONTEXT:,}: {remedies.get('context', 'take another engine')}"
        )
    if connection.key is None and not connection.local:
        found += ["the API requires no key, and is open to the network; to make one:", "  sparkcluster key INVENTORY"]
    return found


def notes(client: Client, connection: Connection) -> list[str]:
    """What else there is to know, with what the playbook tells clients to send."""
    told = connection.request
    found = [*client.notes(connection)]
    if told.body and not client.sends:
        fields = ", ".join(f"{name} {json.dumps(value)}" for name, value in told.body.items())
        found.append(f"the playbook recommends for requests: {fields}")
    return [*found, *([f"the playbook says: {told.note}"] if told.note else [])]


CLIENTS: dict[str, Client] = {
    "open-webui": Client(
        "Open WebUI",
        "chat in the browser",
        "a shell on a machine with Docker",
        "https://docs.openwebui.com/getting-started/quick-start/connect-a-provider/starting-with-vllm",
        blocks.open_webui,
        blocks.open_webui_notes,
    ),
    "claude-code": Client(
        "Claude Code",
        "coding agent in the terminal",
        "a shell",
        "https://docs.vllm.ai/en/stable/serving/integrations/claude_code/",
        blocks.claude_code,
        blocks.claude_code_notes,
        agent=True,
        messages=True,
    ),
    "cline": Client(
        "Cline",
        "coding agent in VS Code",
        "its settings",
        "https://docs.cline.bot/provider-config/openai-compatible",
        blocks.cline,
        blocks.cline_notes,
        agent=True,
    ),
    "continue": Client(
        "Continue",
        "coding assistant in VS Code and JetBrains",
        "~/.continue/config.yaml",
        "https://docs.continue.dev/reference",
        blocks.continue_dev,
        blocks.continue_dev_notes,
        agent=True,
    ),
    "vscode": Client(
        "VS Code",
        "its chat, with a model of your own",
        "chatLanguageModels.json",
        "https://code.visualstudio.com/docs/agent-customization/language-models",
        blocks.vscode,
        blocks.vscode_notes,
        agent=True,
    ),
    "aider": Client(
        "Aider",
        "pair programming in the terminal",
        "a shell",
        "https://aider.chat/docs/llms/openai-compat.html",
        blocks.aider,
        blocks.aider_notes,
        reasoning=True,
    ),
    "hermes": Client(
        "Hermes Agent",
        "agent of Nous Research",
        "~/.hermes/config.yaml",
        "https://hermes-agent.nousresearch.com/docs/integrations/providers",
        blocks.hermes,
        blocks.hermes_notes,
        agent=True,
    ),
    "openai": Client(
        "OpenAI SDK",
        "your own program in Python",
        "a Python file",
        "https://docs.vllm.ai/en/stable/serving/openai_compatible_server/",
        blocks.openai_sdk,
        blocks.openai_sdk_notes,
        reasoning=True,
        sends=True,
    ),
    "curl": Client(
        "curl",
        "one request from a shell",
        "a shell",
        "https://docs.vllm.ai/en/stable/serving/openai_compatible_server/",
        completion,
        blocks.nothing,
        sends=True,
    ),
}
