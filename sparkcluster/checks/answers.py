"""Whether what a model said is language at all. Pure."""

from __future__ import annotations

import collections
import re

# Below this nothing can be told: a right answer may be one word, or `!`.
SHORT = 16
# Greedy decoding of a healthy model repeats itself too, but not from its first words on.
WORDS, SHARE = 12, 0.8


def garbage(text: str) -> str | None:
    """What makes ``text`` garbage in few words, or None.

    Broken FP4 kernels of sm_121 answer ``!!!!!``: fluent HTTP, no language. A checkpoint that was scaled wrongly
    repeats one token (vllm-project/vllm#54189) or emits bytes that are no text (vllm-project/vllm#54150).
    """
    said = text.strip()
    if len(said) < SHORT:
        return None
    if said.count("�") >= max(4, len(said) // 10):
        return f"bytes that are no text: {said[:24]!r}"
    if len(set(said)) <= 2:
        return f"one character over and over: {said[:24]!r}"
    words = re.findall(r"\w+|[^\w\s]+", said)
    word, times = collections.Counter(words).most_common(1)[0]
    if len(words) >= WORDS and times >= SHARE * len(words):
        return f"one token over and over: {word[:24]!r}"
    unit = re.fullmatch(r"(\S{1,24}?)\1{7,}\S{0,24}", said)
    return f"one token over and over: {unit[1]!r}" if unit else None
