"""Whether an answer is what was asked for: text at all, and the text that the playbook expects. Pure."""

from __future__ import annotations

import collections
import re

from sparkcluster.spec.playbook import Verify

# A shorter answer may be right: one word, or `!`.
SHORT = 16
# Greedy decoding of a healthy model repeats itself too, but not from the start.
WORDS, SHARE = 12, 0.8
BRIEF_TOKENS = 32


def garbage(text: str) -> str | None:
    """Why ``text`` is garbage, in a few words, or None.

    Broken FP4 kernels of sm_121 answer ``!!!!!``: fluent HTTP, no language. A checkpoint that was scaled wrongly
    repeats one token or emits bytes that are no text.
    """
    output = text.strip()
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


def judge(text: str, verify: Verify) -> str | None:
    """What is wrong with an answer, or None."""
    if not text.strip():
        return f"the answer is empty; a reasoning model may need more than {verify.max_tokens} tokens"
    if wrong := garbage(text):
        return f"the answer is garbage: {wrong}"
    if verify.expect and not re.search(verify.expect, text):
        return f"the answer does not match {verify.expect!r}: {text.strip()[:120]!r}"
    return None


def brief(verify: Verify) -> int | None:
    """Tokens that are enough to judge an answer by; None where the playbook expects a text, and all are needed."""
    return None if verify.expect else min(BRIEF_TOKENS, verify.max_tokens)
