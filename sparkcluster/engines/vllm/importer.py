"""Reads commands that start vLLM, for ``sparkcluster import``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from sparkcluster.engines.vllm import import_arguments, launch_cluster
from sparkcluster.engines.vllm.versions import of_reference


class VllmImporter:
    """An ``Importer``."""

    ENGINE = "vllm"
    TITLE = "vLLM"
    COMMAND = "vllm serve"
    IMAGE_PROBLEM = ""

    def after_command(self, words: Sequence[str]) -> list[str] | None:
        """The words after ``vllm serve``, written once or twice, or after the older module's name."""
        remaining, found = list(words), False
        while remaining:
            if remaining[0] in {"exec", "nohup"}:
                remaining = remaining[1:]
            elif len(remaining) > 1 and remaining[0].rpartition("/")[2] == "vllm" and remaining[1] == "serve":
                remaining, found = remaining[2:], True
            elif (run := _run_by_python(remaining)) is not None:
                if run[0] == "vllm.entrypoints.openai.api_server":
                    return run[1:]
                if run[0] == "vllm.entrypoints.cli.main":
                    run[0] = "vllm"
                elif run[0].rpartition("/")[2] != "vllm":
                    break
                remaining = run
            else:
                break
        return remaining if found else None

    def is_entrypoint(self, image: str) -> bool:
        """Whether ``vllm serve`` is the entrypoint of ``image``."""
        return of_reference(image).family == "upstream"

    read = staticmethod(import_arguments.read)
    launched = staticmethod(launch_cluster.launched)

    def is_worker(self, words: Sequence[str]) -> bool:
        """Whether the words after the command start a rank other than the first."""
        split = [part for word in words for part in (word.split("=", 1) if word.startswith("--node-rank=") else [word])]
        ranks = [value for name, value in pairwise(split) if name == "--node-rank"]
        return "--headless" in words or ranks[-1:] not in ([], ["0"])


IMPORTER = VllmImporter()


def _run_by_python(words: Sequence[str]) -> list[str] | None:
    """The module or script that Python runs, and its arguments; None for another program."""
    if not words or not re.fullmatch(r"(.*/)?python[0-9.]*", words[0]):
        return None
    at = 1
    while at < len(words) and re.fullmatch(r"-[A-Zbdiqsuv]+", words[at]):
        at += 2 if words[at] in {"-X", "-W"} else 1
    return list(words[at + (words[at : at + 1] == ["-m"]) :]) or None
