"""Rules on files that engine arguments name: each has to be in the container."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from sparkcluster.checks.registry import Seen
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule

# Where the launcher links the model, drafters and adapters in the container (sparkcluster/node/prepare.py).
OWN = "/sparkcluster/"
# Arguments that take the path of a file; a chat template may be its text instead.
FILES = ("chat-template", "reasoning-parser-plugin", "tool-parser-plugin")
_TEXT = re.compile(r"\{[{%#]|\n")


@rule(
    "SM121-142",
    "Files that arguments name are in the container",
    source="vllm/entrypoints/chat_utils.py (`appears path-like, but doesn't exist!`); mods that bring such files: "
    f"{sources.EUGR} (mods/fix-qwen3.5-chat-template)",
)
def mounted(served: Served) -> Iterator[Seen]:
    """With a chat template or a parser's plugin that is not there the engine fails at startup.

    What is in the image is not known before a node has it: a path that no mount has and no line of `setup` names is a
    warning. A recipe's mods, which bring such files, are not part of a playbook. `examples/` is vLLM's own directory.
    """
    for flag in FILES:
        path = served.values.get(flag)
        if not isinstance(path, str) or _TEXT.search(path) or path.startswith((OWN, "examples/")):
            continue
        if not _brought(served, path):
            remedy = f"add the file's directory to mounts, and write its path in the container as {flag}"
            yield served.say(flag, f"nothing brings {path[:80]} into the container", remedy)


def _brought(served: Served, path: str) -> bool:
    """Whether a mount has the path, or a line that runs before the engine names the file."""
    name = PurePosixPath(path).name
    lines = [*served.playbook.setup, *(word for word in served.playbook.command or () if " " in word)]
    before = [line.partition("vllm serve")[0] for line in lines]
    if any(name in line for line in before):
        return True
    return any(PurePosixPath(path).is_relative_to(mount.target) for mount in served.playbook.mounts)
