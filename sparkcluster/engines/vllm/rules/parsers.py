"""Rules on parsers: tool calls and reasoning come out as the API promises only where the parser is the model's."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import Seen
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule

# A reasoning model needs this much to reach an answer.
TOKENS = 512
# Parsers that a checkpoint brings as a file, in no release of vLLM.
BROUGHT = frozenset({"nano_v3", "super_v3"})


@rule(
    "SM121-080",
    "Tool choice and its parser are given together",
    severity="error",
    source=f"vllm/entrypoints/openai/cli_args.py; {sources.GUIDE}",
)
def together(served: Served) -> Iterator[Seen]:
    """`--enable-auto-tool-choice` without a parser ends the engine as it starts.

    A parser without it answers HTTP 400 to every request that offers tools:
    `"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set`.
    """
    chosen, parser = served.on("enable-auto-tool-choice"), served.text("tool-call-parser")
    if chosen and parser is None:
        at = served.path("enable-auto-tool-choice")
        usual = served.model.tools[0] if served.model and served.model.tools else "…"
        summary = "enable-auto-tool-choice is given without a parser"
        yield served.say("error", at, summary, f"write tool-call-parser: {usual}")
    elif parser is not None and not chosen:
        at = served.path("tool-call-parser")
        summary = "a tool parser is given, and tool calls answer HTTP 400"
        yield served.say("warning", at, summary, "write enable-auto-tool-choice: true")


@rule("SM121-081", "A model that calls tools may", severity="info", source=sources.GUIDE)
def tools(served: Served) -> Iterator[Seen]:
    """Without parser and `--enable-auto-tool-choice` agents get HTTP 400, while chat works and the model is listed."""
    known = served.model.tools if served.model else ()
    if known and not served.on("enable-auto-tool-choice") and served.text("tool-call-parser") is None:
        remedy = f"write enable-auto-tool-choice: true and tool-call-parser: {known[0]}"
        at = served.path("tool-call-parser")
        yield served.say("info", at, "requests that offer tools will answer HTTP 400", remedy)


@rule(
    "SM121-082",
    "The tool parser is the model's",
    source=f"{sources.GUIDE}; docs.vllm.ai, Tool Calling; the models' cards",
)
def tool_parser(served: Served) -> Iterator[Seen]:
    """A parser that expects another format leaves tool calls in the text, as JSON or tags.

    It follows the model's family, never the client: an agent called Hermes does not want the parser hermes.
    Gemma 4 26B-A4B wants pythonic, the other Gemma 4 models gemma4.
    """
    said, model = served.text("tool-call-parser"), served.model
    if said and model and model.tools and said not in model.tools:
        summary = f"tool parser {said} is not that of {model.name}"
        yield served.say(
            "warning", served.path("tool-call-parser"), summary, f"write tool-call-parser: {model.tools[0]}"
        )


@rule(
    "SM121-083",
    "The reasoning parser is the model's",
    source=f"{sources.GUIDE}; {sources.VLLM_BLOG}; docs.vllm.ai, Reasoning Outputs",
)
def reasoning_parser(served: Served) -> Iterator[Seen]:
    """Without its parser a model's thoughts stand in the answer; with a wrong one it is empty."""
    said, model = served.text("reasoning-parser"), served.model
    if model is None:
        return
    at = served.path("reasoning-parser")
    if said and model.reasoning == "never":
        summary = f"{model.name} does not reason, and its answers would be empty"
        yield served.say("warning", at, summary, "take reasoning-parser out")
    elif said and model.thoughts and said not in model.thoughts:
        summary = f"reasoning parser {said} is not that of {model.name}"
        yield served.say("warning", at, summary, f"write reasoning-parser: {model.thoughts[0]}")
    elif not said and model.reasoning == "always" and model.thoughts:
        summary = "thoughts will stand in the answer"
        yield served.say("info", at, summary, f"write reasoning-parser: {model.thoughts[0]}")


@rule("SM121-084", "A parser that comes with the weights is loaded", severity="error", source=sources.GUIDE)
def plugin(served: Served) -> Iterator[Seen]:
    """The parsers nano_v3 and super_v3 are files beside the weights; without the plugin the engine ends at once.

    vLLM's own nemotron_v3 reads the same format and needs no file.
    """
    said = served.text("reasoning-parser")
    if said in BROUGHT and "reasoning-parser-plugin" not in served.flags:
        summary = f"reasoning parser {said} is no part of vLLM"
        remedy = "write reasoning-parser: nemotron_v3, or reasoning-parser-plugin: /path/in/the/container.py"
        yield served.say("error", served.path("reasoning-parser"), summary, remedy)


@rule(
    "SM121-085",
    "A reasoning model is asked for enough",
    source=f"512, for tools 1024: {sources.TWO_SPARKS}; 10,000 for Nemotron-3-Nano: {sources.GUIDE}",
)
def budget(served: Served) -> Iterator[Seen]:
    """Thoughts come out of max_tokens first; with fewer than 512 the answer is `content: null`."""
    model, verify = served.model, served.playbook.verify
    thinking = verify.chat_template_kwargs.get("enable_thinking")
    thinks = thinking is not False and (
        model is not None and (model.reasoning == "always" or (model.reasoning == "asked" and thinking is True))
    )
    if thinks and model and verify.max_tokens < TOKENS:
        summary = f"{model.name} thinks first, and is verified with {verify.max_tokens} tokens"
        yield served.say("warning", ("verify", "max_tokens"), summary, f"write max_tokens: {TOKENS} or more")
