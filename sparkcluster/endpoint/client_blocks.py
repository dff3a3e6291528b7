"""The block that each client of ``clients`` gets, and notes on it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator

from sparkcluster.endpoint.connection import AGENT_CONTEXT, Connection
from sparkcluster.printable import shell, word
from sparkcluster.spec.playbook import REASONING_TOKENS

MODEL_LIST_S = 30
"""How long Open WebUI waits for a list of models; 10 by itself (AIOHTTP_CLIENT_TIMEOUT_MODEL_LIST in its env.py)."""


def nothing(_: Connection) -> Iterator[str]:
    """No notes."""
    return iter(())


def _paste_key(connection: Connection) -> Iterator[str]:
    if connection.key and not connection.key.value:
        yield f"the key: {connection.key.command}"


# ------------------------------------------------------------------------------------------------- Open WebUI


def open_webui(connection: Connection) -> str:
    """``docker run`` of it, with every group; where the API is on loopback, on the network of the machine itself."""
    urls = (connection.url, *connection.others)
    key = (connection.key.value or connection.key.expansion) if connection.key else "none"
    keys = ";".join([key] * len(urls))
    value = word(keys) if connection.key is None or connection.key.value else f'"{keys}"'
    # By name alone, -e takes the value from the environment: the key is in no command line.
    return "\n".join(
        [
            f"export OPENAI_API_KEYS={value}",
            "docker run -d --name open-webui --restart always \\",
            "  --network host \\" if connection.local else "  -p 3000:8080 \\",
            "  -v open-webui:/app/backend/data \\",
            f"  -e OPENAI_API_BASE_URLS={word(';'.join(urls))} \\",
            "  -e OPENAI_API_KEYS \\",
            f"  -e AIOHTTP_CLIENT_TIMEOUT_MODEL_LIST={MODEL_LIST_S} \\",
            "  ghcr.io/open-webui/open-webui:main",
        ]
    )


def open_webui_notes(connection: Connection) -> Iterator[str]:
    """As ``Client.notes`` says."""
    yield f"then open http://127.0.0.1:{8080 if connection.local else 3000}"
    yield f"it waits {MODEL_LIST_S} s for the list of models, not 10: the API answers late while a model loads"
    # docs.openwebui.com, Environment Variable Configuration: ConfigVar
    yield "URLs and keys count at its first start only; where it runs already: Admin Settings, Connections, OpenAI"
    if connection.local:
        port = connection.root.rpartition(":")[2]
        yield "in a container without --network host, localhost is the container; with Docker Desktop the URL is there:"
        yield f"  http://host.docker.internal:{port}/v1"
        bridge = f"-L 172.17.0.1:{port}:… in the tunnel, and http://172.17.0.1:{port}/v1"
        direct = "api: {host: management} in the inventory, and the address of this Spark"
        yield f"with Docker on Linux: {bridge if connection.tunnel else direct}"
    yield "to see what it reaches, from within its container (401: it is reached, with another key):"
    yield f"  {inside(connection)}"


def inside(connection: Connection) -> str:
    """A command that asks for the models from within the container, with the first of its keys."""
    header = '-H "Authorization: Bearer ${OPENAI_API_KEYS%%;*}" ' if connection.key else ""
    asked = f"curl -sS -m {MODEL_LIST_S} {header}{word(f'{connection.url}/models')}"
    return shell("docker exec open-webui sh -c", asked)


# ------------------------------------------------------------------------------------------------ Claude Code


def claude_model(connection: Connection) -> str | None:
    """Its first name without a slash, which Claude Code does not take; None where it has none."""
    return next((name for name in (connection.model, *connection.aliases) if "/" not in name), None)


def claude_code(connection: Connection) -> str:
    """Variables for one shell, so that other sessions of Claude Code stay with Anthropic."""
    model = claude_model(connection) or connection.model
    lines = [
        shell("export", f"ANTHROPIC_BASE_URL={connection.root}"),
        f"export ANTHROPIC_AUTH_TOKEN={connection.key.word if connection.key else 'none'}",
        "unset ANTHROPIC_API_KEY",
        *(shell("export", f"ANTHROPIC_DEFAULT_{tier}_MODEL={model}") for tier in ("OPUS", "SONNET", "HAIKU")),
    ]
    if connection.features.context is not None:
        lines += [
            f"export CLAUDE_CODE_MAX_CONTEXT_TOKENS={connection.features.context}",
            f"export CLAUDE_CODE_MAX_OUTPUT_TOKENS={connection.output}",
        ]
    return "\n".join([*lines, "claude"])


def claude_code_notes(connection: Connection) -> Iterator[str]:
    """As ``Client.notes`` says."""
    yield "the base URL is without /v1: Claude Code appends /v1/messages"
    # https://github.com/vllm-project/vllm/issues/51572
    yield "vLLM takes the key as ANTHROPIC_AUTH_TOKEN (Bearer) only, not as ANTHROPIC_API_KEY (x-api-key)"
    model = claude_model(connection)
    if model not in {connection.model, None}:
        # https://github.com/vllm-project/vllm/issues/51266
        yield f"{model} is an alias: set it as served_name, or thinking is lost between tool calls (vllm#51266)"
    if connection.features.context is not None:
        # code.claude.com/docs, Model configuration: 200,000 and 32,000 are assumed of a model that it does not know.
        yield "without CLAUDE_CODE_MAX_… it assumes 200,000 tokens of context and asks for answers of 32,000"
    # https://docs.vllm.ai/en/stable/serving/integrations/claude_code/
    yield "a line that changes with every request can defeat prefix caching: in ~/.claude/settings.json write"
    yield '  {"env": {"CLAUDE_CODE_ATTRIBUTION_HEADER": "0"}}'


# ------------------------------------------------------------------------------------------------------- Cline


def cline(connection: Connection) -> str:
    """The fields of its settings."""
    fields = [
        ("API Provider", "OpenAI Compatible"),
        ("Base URL", connection.url),
        ("API Key", connection.key.text if connection.key else "none"),
        ("Model ID", connection.model),
        ("Context Window", connection.features.context),
        ("Max Output Tokens", connection.output),
    ]
    return "\n".join(f"{name + ':':<19}{value}" for name, value in fields if value is not None)


def cline_notes(connection: Connection) -> Iterator[str]:
    """As ``Client.notes`` says."""
    yield from _paste_key(connection)
    # apps/vscode/src/shared/api.ts of cline/cline
    yield "the last two are under Model Configuration; Cline assumes 128,000 tokens of context where they are not set"


# ---------------------------------------------------------------------------------------------------- Continue


def continue_dev(connection: Connection) -> str:
    """A whole configuration; it is shared by the extensions of all editors."""
    key = connection.key
    secret = (key.value or f"${{{{ secrets.{connection.variable} }}}}") if key else "none"
    lines = [
        f"name: {json.dumps(connection.cluster)}",
        "version: 0.0.1",
        "schema: v1",
        "models:",
        f"  - name: {json.dumps(connection.cluster)}",
        "    provider: openai",
        f"    model: {json.dumps(connection.model)}",
        f"    apiBase: {json.dumps(connection.url)}",
        f"    apiKey: {json.dumps(secret)}",
        "    roles: [chat, edit, apply]",
    ]
    if connection.features.tools:
        lines.append("    capabilities: [tool_use]")
    if connection.features.context is not None:
        lines += [
            "    defaultCompletionOptions:",
            f"      contextLength: {connection.features.context}",
            f"      maxTokens: {connection.output}",
        ]
    return "\n".join(lines)


def continue_dev_notes(connection: Connection) -> Iterator[str]:
    """As ``Client.notes`` says."""
    yield "where the file is there already, add the entry of models to those in it"
    if connection.key and not connection.key.value:
        # https://github.com/continuedev/continue/issues/5902
        name = connection.variable
        yield "secrets are read from ~/.continue/.env, not from the environment:"
        yield f"  (umask 077; printf '{name}=%s\\n' {connection.key.word} >> ~/.continue/.env)"
    if connection.features.tools:
        yield "without capabilities Continue does not offer agent mode: it does not know this model"


# ----------------------------------------------------------------------------------------------------- VS Code


def vscode(connection: Connection) -> str:
    """A provider of the kind Custom Endpoint."""
    context, output = connection.features.context, connection.output
    model = {
        "id": connection.model,
        "name": f"{connection.model} on {connection.cluster}",
        "url": f"{connection.url}/chat/completions",
        "toolCalling": connection.features.tools is True,
        "vision": False,
    }
    if context is not None and output is not None:
        model |= {"maxInputTokens": context - output, "maxOutputTokens": output}
    if connection.features.reasoning:
        model["thinking"] = True
    key = connection.key.value if connection.key and connection.key.value else "${input:sparkApiKey}"
    provider = {
        "name": connection.cluster,
        "vendor": "customendpoint",
        **({"apiKey": key} if connection.key else {}),
        "apiType": "chat-completions",
        "models": [model],
    }
    return json.dumps([provider], indent=2)


def vscode_notes(connection: Connection) -> Iterator[str]:
    """As ``Client.notes`` says."""
    yield "VS Code 1.122 or newer: Chat: Manage Language Models, Add Models, Custom Endpoint opens the file"
    if connection.key:
        yield f"type the key there ({connection.key.command}), and keep the apiKey line that VS Code writes"
    yield "the URL has the whole path; a model without toolCalling is not offered to agents"
    yield "maxInputTokens and maxOutputTokens together must not exceed the context; vision: true if it takes images"


# ------------------------------------------------------------------------------------------------------- Aider


def aider(connection: Connection) -> str:
    """Variables and the command."""
    return "\n".join(
        [
            shell("export", f"OPENAI_API_BASE={connection.url}"),
            f"export OPENAI_API_KEY={connection.key.word if connection.key else 'none'}",
            shell("aider --model", f"openai/{connection.model}"),
        ]
    )


def aider_notes(connection: Connection) -> Iterator[str]:
    """As ``Client.notes`` says."""
    more = ", also where the name has a slash of its own" if "/" in connection.model else ""
    yield f"openai/ goes before the name of the model{more}; aider calls no tools"
    yield "its warning about an unknown context window can be ignored: aider enforces none"


# ------------------------------------------------------------------------------------------------------ Hermes


def hermes(connection: Connection) -> str:
    """Two sections of its configuration: a named provider, and the model that is used."""
    key, context = connection.key, connection.features.context
    lines = ["providers:", f"  {json.dumps(connection.cluster)}:", f"    base_url: {json.dumps(connection.url)}"]
    if key and key.value:
        lines.append(f"    api_key: {json.dumps(key.value)}")
    elif key:
        # key_cmd is not said to be run by a shell, which a path from the home directory needs.
        command = shell("sh -c", key.command)
        lines.append(f"    key_env: {key.env}" if key.env else f"    key_cmd: {json.dumps(command)}")
    lines += [
        "    api_mode: chat_completions",
        "model:",
        f"  provider: {json.dumps(f'custom:{connection.cluster}')}",
        f"  default: {json.dumps(connection.model)}",
    ]
    return "\n".join([*lines, *([f"  context_length: {context}"] if context is not None else [])])


def hermes_notes(connection: Connection) -> Iterator[str]:
    """As ``Client.notes`` says."""
    yield "where the file is there already, merge the two sections with those in it"
    if connection.key and connection.key.env and not connection.key.value:
        yield f"it reads {connection.key.env} from its environment or from ~/.hermes/.env"
    yield f"Hermes refuses a context below {AGENT_CONTEXT:,} tokens; the tool parser is that of the model, not hermes"
    # https://github.com/NousResearch/hermes-agent/issues/72901, named in its cli-config.yaml.example
    yield "if tool calls arrive as text while answers stream (parser qwen3_xml): streaming: false under model"


# --------------------------------------------------------------------------------------------- OpenAI SDK, curl


def openai_sdk(connection: Connection) -> str:
    """A program that asks for a completion."""
    key, told = connection.key, dict(connection.request.body)
    # what OpenAI's API has not
    extra = {name: told.pop(name) for name in ("top_k", "chat_template_kwargs") if name in told}
    imports, value = [], '"none"'
    if key and key.value:
        value = json.dumps(key.value)
    elif key and key.env:
        imports, value = ["import os"], f"os.environ[{json.dumps(key.env)}]"
    elif key:
        imports = ["from pathlib import Path"]
        value = f"Path({json.dumps(key.file)}).expanduser().read_text().strip()"
    return "\n".join(
        [
            *imports,
            *([""] if imports else []),
            "from openai import OpenAI",
            "",
            "client = OpenAI(",
            f"    base_url={json.dumps(connection.url)},",
            f"    api_key={value},",
            ")",
            "answer = client.chat.completions.create(",
            f"    model={json.dumps(connection.model)},",
            '    messages=[{"role": "user", "content": "Hello"}],',
            *(f"    {name}={value!r}," for name, value in (told | ({"extra_body": extra} if extra else {})).items()),
            ")",
            "print(answer.choices[0].message.content)",
        ]
    )


def openai_sdk_notes(connection: Connection) -> Iterator[str]:
    """As ``Client.notes`` says."""
    if not connection.key:
        yield "the SDK requires a key, though the API does not: any text will do"
    # https://docs.vllm.ai/en/stable/features/reasoning_outputs/
    if connection.features.reasoning:
        yield f"reasoning is in message.reasoning; it counts as output: max_tokens {REASONING_TOKENS} or more, or none"
    if not connection.request.chat_template_kwargs:
        yield 'options of the chat template: extra_body={"chat_template_kwargs": {…}}'
