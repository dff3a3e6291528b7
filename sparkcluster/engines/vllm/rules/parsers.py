"""Rules on parsers: tool calls and reasoning follow the API only with the model's parser."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import Seen
from sparkcluster.engines.vllm.arguments import CHOICE, REASONING, TOOLS
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule

# A reasoning model needs this many tokens to reach an answer.
TOKENS = 512
# Parsers that a checkpoint brings as a file, in no release of vLLM.
BROUGHT = frozenset({"nano_v3", "super_v3"})


@rule(
    "SM121-080",
    "Tool choice and its parser are set together",
    severity="error",
    source=f"vllm/entrypoints/openai/cli_args.py; {sources.GUIDE}",
)
def together(served: Served) -> Iterator[Seen]:
    """`--enable-auto-tool-choice` without a parser fails at startup.

    A parser without it answers HTTP 400 to every request that offers tools:
    `"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set`.
    """
    enabled, parser = served.on(CHOICE), served.text(TOOLS)
    if enabled and parser is None:
        usual = served.model.tools[0] if served.model and served.model.tools else "…"
        yield served.say(CHOICE, f"{CHOICE} is set without a parser", f"write {TOOLS}: {usual}")
    elif parser is not None and not enabled:
        summary = "a tool parser is set, but tool calls answer HTTP 400"
        yield served.say(TOOLS, summary, f"write {CHOICE}: true", severity="warning")


@rule("SM121-081", "Tool calls are enabled for a model that supports them", severity="info", source=sources.GUIDE)
def tools(served: Served) -> Iterator[Seen]:
    """Without parser and `--enable-auto-tool-choice` agents get HTTP 400, though chat works and the model is listed."""
    parsers = served.model.tools if served.model else ()
    if parsers and not served.on(CHOICE) and served.text(TOOLS) is None:
        remedy = f"write {CHOICE}: true and {TOOLS}: {parsers[0]}"
        yield served.say(TOOLS, "requests that offer tools will answer HTTP 400", remedy)


@rule(
    "SM121-082",
    "The tool parser fits the model",
    source=f"{sources.GUIDE}; docs.vllm.ai, Tool Calling; the models' cards; Gemma 4: "
    "https://github.com/vllm-project/recipes/tree/main/models/Google; Nemotron 3: "
    "https://github.com/vllm-project/recipes/tree/main/models/nvidia",
)
def tool_parser(served: Served) -> Iterator[Seen]:
    """A parser for another format leaves tool calls in the text, as JSON or tags.

    It depends on the model's family, not on the client: the agent Hermes does not need the parser hermes.
    Sources disagree about Gemma 4 26B-A4B: vLLM's documentation and recipes name gemma4, a guide pythonic; both are
    accepted.
    """
    parser, model = served.text(TOOLS), served.model
    if parser and model and model.tools and parser not in model.tools:
        summary = f"tool parser {parser} is not that of {model.name}"
        yield served.say(TOOLS, summary, f"write {TOOLS}: {model.tools[0]}")


@rule(
    "SM121-083",
    "The reasoning parser fits the model",
    source=f"{sources.GUIDE}; {sources.VLLM_BLOG}; docs.vllm.ai, Reasoning Outputs",
)
def reasoning_parser(served: Served) -> Iterator[Seen]:
    """Without its parser the model's reasoning is part of the answer; with a wrong one the answer is empty."""
    parser, model = served.text(REASONING), served.model
    if model is None:
        return
    if parser and model.reasoning == "never":
        yield served.say(REASONING, f"{model.name} does not reason: its answers would be empty", f"remove {REASONING}")
    elif model.thoughts and parser and parser not in model.thoughts:
        summary = f"reasoning parser {parser} is not that of {model.name}"
        yield served.say(REASONING, summary, f"write {REASONING}: {model.thoughts[0]}")
    elif model.thoughts and not parser and model.reasoning == "always":
        summary = "reasoning will be part of the answer"
        yield served.say(REASONING, summary, f"write {REASONING}: {model.thoughts[0]}", severity="info")


@rule(
    "SM121-085",
    "Verification of a reasoning model allows enough tokens",
    source=f"512, for tools 1024: {sources.TWO_SPARKS}; 10,000 for Nemotron-3-Nano: {sources.GUIDE}",
)
def budget(served: Served) -> Iterator[Seen]:
    """Reasoning uses max_tokens first; with a reasoning parser `verify` allows 2,048, or turns reasoning off."""
    model, verify = served.model, served.playbook.verifying
    thinking = verify.chat_template_kwargs.get("enable_thinking")
    if model is None or thinking is False or verify.max_tokens >= TOKENS:
        return
    if model.reasoning == "always" or (model.reasoning == "asked" and thinking is True):
        summary = f"{model.name} reasons first, and is verified with {verify.max_tokens} tokens"
        yield served.say(("verify", "max_tokens"), summary, f"write max_tokens: {TOKENS} or more")


@rule(
    "SM121-086",
    "What verify asks for beside its prompt has its parser",
    severity="error",
    source="docs.vllm.ai, Tool Calling and Reasoning Outputs",
)
def verified(served: Served) -> Iterator[Seen]:
    """The launch would fail once the weights are loaded: tools answer HTTP 400, or reasoning is part of the answer."""
    verify, model = served.playbook.verify, served.model
    if verify.tools and not (served.on(CHOICE) and served.text(TOOLS)):
        usual = model.tools[0] if model and model.tools else "…"
        summary = "verify asks for a tool call, and the playbook enables none"
        yield served.say(("verify", "tools"), summary, f"write {CHOICE}: true and {TOOLS}: {usual} in args")
    if verify.reasoning and not served.text(REASONING):
        usual = model.thoughts[0] if model and model.thoughts else "…"
        summary = "verify asks for reasoning, and the playbook sets no parser for it"
        yield served.say(("verify", "reasoning"), summary, f"write {REASONING}: {usual} in args")
