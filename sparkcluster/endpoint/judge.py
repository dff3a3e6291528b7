"""Judges whether a reply's content is the answer that the playbook expects; ``dead`` judges signs of life."""

from __future__ import annotations

import collections
import json
import re
import subprocess
import sys

from sparkcluster.facts.running import Done, Reply
from sparkcluster.spec.playbook import Verify

# A shorter answer may be right: one word, or `!`.
SHORT = 16
# Greedy decoding of a healthy model also repeats itself, but not from the start.
WORDS, SHARE = 12, 0.8
# Characters to judge, and to search; a node may send 16 MB.
JUDGED, SEARCHED = 20_000, 1_000_000
# Processor time for a regular expression of the playbook: (a+)+ would take years and cannot be interrupted.
MATCH_S = 2
_MATCH = """
import json, re, resource, sys
limit_s, pattern, text = json.load(sys.stdin)
for what, limit in (resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, 1 << 30), (resource.RLIMIT_CPU, limit_s):
    hard = resource.getrlimit(what)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(what, (limit, limit))
sys.exit(0 if re.search(pattern, text) else 3)
"""


def garbage(text: str) -> str | None:
    """Why ``text`` is garbage, in a few words, or None.

    Broken FP4 kernels of sm_121 answer ``!!!!!`` with HTTP 200. A wrongly scaled checkpoint repeats one token or emits
    bytes that are not text.
    """
    output = text.strip()[:JUDGED]
    if len(output) < SHORT:
        return None
    if output.count("�") >= max(4, len(output) // 10):
        return f"bytes that are not text: {output[:24]!r}"
    if len(set(output)) <= 2:
        return f"one character over and over: {output[:24]!r}"
    words = re.findall(r"\w+|[^\w\s]+", output)
    word, times = collections.Counter(words).most_common(1)[0]
    if len(words) >= WORDS and times >= SHARE * len(words):
        return f"one token over and over: {word[:24]!r}"
    unit = re.fullmatch(r"(\S{1,24}?)\1{7,}\S{0,24}", output)
    return f"one token over and over: {unit[1]!r}" if unit else None


def lacks_content(reply: Reply) -> str | None:
    """Why a complete answer has no content, or None: reasoning alone (``content: null``) is not an answer."""
    if reply.content.strip():
        return None
    if not reply.text.strip():
        return "the answer is empty"
    if reply.finish == "length":
        return f"the answer is empty: {reply.tokens or 'all of its'} tokens were not enough for its reasoning"
    return "the answer is empty: all of it is reasoning"


def judge_content(reply: Reply, verify: Verify) -> str | None:
    """What is wrong with a complete answer, or None."""
    if empty := lacks_content(reply):
        return empty
    text = reply.content
    if wrong := garbage(text):
        return f"the answer is garbage: {wrong}"
    matches = _search(verify.expect, text) if verify.expect else True
    if matches is None:
        return f"searching for verify.expect takes more than {MATCH_S} s or too much memory: {verify.expect!r}"
    return None if matches else f"the answer does not match {verify.expect!r}: {text.strip()[:120]!r}"


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TOOL_PROMPT = "What is the weather in Paris right now? Use the tool."
# A reasoning model thinks before it calls: https://build.nvidia.com/spark and guides for agents allow 1,024.
TOOL_TOKENS = 1024
# Reasoning comes first.
REASONING_TOKENS = 64
# Marks of reasoning that no parser removed from the answer: Qwen, DeepSeek and Nemotron; gpt-oss.
_THOUGHTS = ("<think>", "</think>", "<|channel|>")


def judge_tools(done: Done) -> str | None:
    """What is wrong with an answer to ``TOOL_PROMPT`` that was offered ``TOOL``, or None."""
    wanted = TOOL["function"]["name"]  # type: ignore[index]
    if not done.tool_calls:
        text = (done.content or done.reasoning).strip()[:120]
        return f"the model was asked to use a tool but called none: {text!r}" if text else "the model called no tool"
    call = done.tool_calls[0]
    if call.name != wanted:
        return f"the model called a tool that was not offered: {call.name[:60]!r}, not {wanted}"
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict) or not isinstance(arguments.get("city"), str):
        return f"the arguments of the tool call are not what the tool takes: {call.arguments[:120]!r}"
    return None


def judge_reasoning(done: Done) -> str | None:
    """What is wrong with a streamed answer whose reasoning must be separate, or None."""
    if any(mark in done.content for mark in _THOUGHTS):
        return f"the reasoning is part of the answer: {done.content.strip()[:120]!r}"
    return None if done.reasoning.strip() else "no reasoning was streamed separately from the answer"


def _search(pattern: str, text: str) -> bool | None:
    """Whether ``text`` matches ``pattern``; None if that takes more than ``MATCH_S`` or too much memory."""
    document = json.dumps([MATCH_S, pattern, text[:SEARCHED]]).encode()
    argv = [sys.executable, "-I", "-S", "-c", _MATCH]
    code = subprocess.run(argv, input=document, capture_output=True, check=False).returncode
    return {0: True, 3: False}.get(code)
