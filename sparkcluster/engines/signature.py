"""What a signature is: how one cause shows in an engine's log, and what is to be said of it. Pure."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Sequence

ANSI = re.compile(r"\x1b\[[0-9;]*m")

EXPLAINED = "RUN-021"
"""Code of the causes that have no check of their own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """Why a rank ended or ails, in one line, and what mends it (None where nothing better than the log is known).

    Attributes:
        line: of the log, as it stands there; empty where no line says it.
        code: of the check that reports it for a cluster that runs.
        consequence: whether it names what follows from another cause rather than a root.
    """

    summary: str
    hint: str | None = None
    line: str = ""
    code: str = EXPLAINED
    consequence: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """How one cause shows in a log.

    Attributes:
        name: short and stable.
        pattern: searched for in single lines, the last match counts.
        summary: what it means; names of the pattern's groups in braces.
        hint: what mends it; likewise.
        source: public thread that has the line.
        code, consequence: as of the Cause.
    """

    name: str
    pattern: str
    summary: str
    hint: str | None
    source: str
    more: Callable[[re.Match[str], Sequence[str]], Cause] | None = None
    code: str = EXPLAINED
    consequence: bool = False

    def match(self, lines: Sequence[str]) -> Cause | None:
        """The cause when one of ``lines`` shows it."""
        for line in reversed(lines):
            found = re.search(self.pattern, line)
            if found is None:
                continue
            if self.more is not None:
                cause = self.more(found, lines)
            else:
                values = {name: value if value is not None else "?" for name, value in found.groupdict().items()}
                cause = Cause(self.summary.format(**values), self.hint.format(**values) if self.hint else None)
            return dataclasses.replace(cause, line=line.strip(), code=self.code, consequence=self.consequence)
        return None


def plain(lines: Sequence[str]) -> list[str]:
    """``lines`` without terminal colours, which would stand between the words of a pattern."""
    return [ANSI.sub("", line) for line in lines]


# Flags that playbooks use, to guess at what a misspelt one was meant to be (vLLM 0.32, `vllm serve --help`).
_FLAGS = re.findall(
    r"\S+",
    """
    attention-backend chat-template data-parallel-size distributed-executor-backend dtype
    enable-auto-tool-choice enable-chunked-prefill enable-expert-parallel enable-prefix-caching
    enforce-eager gpu-memory-utilization headless host kv-cache-dtype limit-mm-per-prompt load-format
    master-addr master-port max-model-len max-num-batched-tokens max-num-seqs mm-encoder-tp-mode
    moe-backend nnodes node-rank pipeline-parallel-size port quantization reasoning-parser revision
    safetensors-load-strategy seed served-model-name speculative-config swap-space tensor-parallel-size
    tokenizer tool-call-parser trust-remote-code
    """,
)


def argument(found: re.Match[str], _lines: Sequence[str]) -> Cause:
    """The argument that vLLM refused, and the one that may have been meant."""
    flags = [word for word in found["what"].split() if word.startswith("-")] or found["what"].split()
    flag = flags[0].split("=")[0]
    name = flag.lstrip("-").replace("_", "-")
    close = [one for one in difflib.get_close_matches(name, _FLAGS, n=1, cutoff=0.75) if one != name]
    meant = f"write {close[0]}" if close else f"remove {name}"
    return Cause(
        f"this vLLM does not know the argument {flag}",
        f"{meant} under args in the playbook, or take an image whose vLLM has it",
    )


def versions(_found: re.Match[str], lines: Sequence[str]) -> Cause:
    """Which versions of Ray and Python met."""
    told = [match for line in lines if (match := re.search(r"\b(Ray|Python): ([\w.]+)", line))]
    parts = [f"{match[1]} {match[2]}" for match in told[-4:]]
    seen = f": the head has {' and '.join(parts[:2])}, this rank {' and '.join(parts[2:])}" if len(parts) == 4 else ""
    return Cause(
        f"Ray or Python differ between the ranks{seen}",
        "the nodes run different images: sparkcluster stage INVENTORY image",
    )


def actor(_found: re.Match[str], lines: Sequence[str]) -> Cause:
    """Where the worker was that died."""
    places = [match[1] for line in lines if (match := re.search(r"^\W*(?:\(.*\)\s*)?ip: ([\d.]+)", line))]
    where = f" on {places[-1]}" if places else ""
    return Cause(
        f"a worker process{where} died",
        "its own log or the kernel's says why: sparkcluster logs INVENTORY NODE, and sudo dmesg on that node",
    )


def port_taken(port: str | None) -> Cause:
    """A port that somebody else holds, by number where the log names it."""
    if port is None:
        return Cause("a port is taken", "who holds it: sudo ss -ltnp on that node")
    return Cause(f"port {port} is taken", f"who holds it: sudo ss -ltnp 'sport = :{port}' on that node")
