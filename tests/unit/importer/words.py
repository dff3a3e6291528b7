"""The meaning of the words of a command line, read without the code under test."""

from __future__ import annotations

import json
import re


def flags_of(words):
    """Flags of an argv, read as argparse would, without the code under test."""
    out = {}
    name = None
    for word in words:
        if re.fullmatch(r"--?[A-Za-z].*", word, re.DOTALL):
            name, equals, value = word.partition("=")
            short = {"-tp": "--tensor-parallel-size", "-q": "--quantization", "-pp": "--pipeline-parallel-size"}
            name = short.get(name, name)
            out[name] = [meaning(value)] if equals else []
        elif name is None:
            out["model"] = [word]
        else:
            out[name].append(meaning(word))
    if "--model" in out:
        out["model"] = out.pop("--model")
    return out


def meaning(text):
    """The meaning of a value, however it is written: JSON and numbers as such."""
    try:
        return json.loads(text)
    except ValueError:
        return text
