"""Rules on how a rank is started: command, files, environment, context, network, and verification."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from sparkcluster.checks.check import Seen
from sparkcluster.engines.vllm.arguments import CHOICE, LONG_MODELS, REASONING, TOOLS, extends_context, longest_context
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule
from sparkcluster.errors import UsageError
from sparkcluster.spec import KeyPath, variables
from sparkcluster.spec.playbook import COMMIT, Companion

_SERVE = re.compile(r"\bvllm\s+serve\s+(?:\S*/)?vllm\s+serve\b")
_PER_NODE = variables.per_node("vllm")
_ASSIGNED = re.compile(r"\b(" + "|".join(sorted(_PER_NODE)) + r")=")
_OPEN_RAY = re.compile(r"--dashboard-host[= ]+(0\.0\.0\.0|::)")
_RAY = re.compile(r"\bray\s+start\b")

# Variables that the plan sets on every rank, and what happens with a different value.
PLANNED = {
    "RAY_memory_monitor_refresh_ms": ("0", "Ray kills ranks that fill the shared memory"),
    "NCCL_NET_PLUGIN": ("none", "a plugin of the image may fall back to TCP"),
    "NCCL_IB_ROCE_VERSION_NUM": ("2", "the interconnect uses RoCE v2"),
}


@rule("SM121-120", "`vllm serve` is written once", severity="error", source=sources.GUIDE)
def twice(served: Served) -> Iterator[Seen]:
    """`vllm serve vllm serve MODEL` fails with `unrecognized arguments: serve`.

    Upstream's images have `vllm serve` as their entrypoint, NGC's do not, so the commands in guides differ.
    sparkcluster handles the entrypoint itself and always runs the complete command.
    """
    for at, line in _commands(served):
        if _SERVE.search(line):
            yield served.say(at, "duplicate `vllm serve`", "remove one of the two")


@rule("SM121-121", "The command starts with a program", severity="error", source=sources.GUIDE)
def program(served: Served) -> Iterator[Seen]:
    """With upstream's image, guides write only a model and flags, for an entrypoint that is not used here."""
    command = served.playbook.command
    if command and (command[0].startswith("-") or re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", command[0])):
        remedy = "write model: and args: instead of command, or start it with vllm, serve"
        yield served.say(("command", 0), f"command starts with {command[0]}, which is not a program", remedy)


@rule(
    "SM121-123",
    "Interfaces are set per node",
    severity="error",
    source="https://github.com/vllm-project/vllm/issues/40991; sparkrun issue 135",
)
def interfaces(served: Served) -> Iterator[Seen]:
    """A line that sets NCCL_SOCKET_IFNAME or a similar variable applies to every node, but their interfaces differ."""
    for at, line in _commands(served):
        for name in sorted(set(_ASSIGNED.findall(line))):
            yield served.say(at, f"{name} is the same on every node", "remove it: sparkcluster sets it for each node")


@rule("SM121-124", "Interfaces set by the image are overridden", severity="info", source="vLLM and NGC images")
def baked(served: Served) -> Iterator[Seen]:
    """An image that sets NCCL_SOCKET_IFNAME or a similar variable names an interface of a different machine.

    sparkcluster sets these variables for each node, so the image's values only apply without sparkcluster.
    """
    found = sorted(served.baked & _PER_NODE)
    if found:
        summary = f"the image sets {', '.join(found)}, which sparkcluster overrides"
        yield served.say(("image",), summary, "no action needed, unless you start the image by hand")


@rule("SM121-125", "Variables that every rank needs are not changed", source=sources.TWO_SPARKS)
def planned(served: Served) -> Iterator[Seen]:
    """The plan sets them on every rank, since launches failed without them; the playbook's `env` overrides them."""
    for name, (value, why) in PLANNED.items():
        if served.playbook.env.get(name, value) != value:
            yield served.say(("env", name), f"{name} is changed: {why}", f"remove {name} from env")


@rule("SM121-126", "Ray is reachable on the interconnect only", severity="error", source="docs.ray.io, Security")
def open_ray(served: Served) -> Iterator[Seen]:
    """Anyone who reaches Ray's job API can run commands.

    sparkcluster starts Ray on the interconnect's address, without dashboard and with a token. A line in the playbook
    would start a second Ray.
    """
    for at, line in _commands(served):
        if _OPEN_RAY.search(line):
            yield served.say(at, "Ray's dashboard listens on every network", "remove the line")
        elif _RAY.search(line):
            remedy = "remove the line: sparkcluster starts it"
            yield served.say(at, "Ray is started a second time", remedy, severity="warning")


@rule(
    "SM121-127",
    "The GPU is visible",
    severity="error",
    source="https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html",
)
def visible(served: Served) -> Iterator[Seen]:
    """A Spark has one GPU, number 0: with CUDA_VISIBLE_DEVICES=1 CUDA sees no GPU, and the engine fails at startup.

    CUDA ignores everything after an invalid index, so `0,1` is the same as `0`. A UUID matches the GPU of one node.
    """
    name = "CUDA_VISIBLE_DEVICES"
    written = served.playbook.env.get(name)
    if written is None or not served.spark or written == "0":
        return
    remedy = f"remove {name} from env: a Spark has one GPU"
    first = written.partition(",")[0].strip()
    if first == "0":
        yield served.say(("env", name), f"{name} lists GPUs that a Spark does not have", remedy, severity="warning")
    elif first.startswith("GPU-"):
        yield served.say(("env", name), f"{name} is the GPU of one node", remedy, severity="warning")
    else:
        yield served.say(("env", name), f"{name}={written} leaves no GPU visible", remedy)


@rule("MDL-004", "The model is pinned", severity="info", source="docs.vllm.ai, Security")
def revision(served: Served) -> Iterator[Seen]:
    """The owner of a branch can change it; `up` and `stage` report if its commit has changed since it was first staged.

    With `--trust-remote-code` this is a warning: Python code from the repositories of the model, a drafter or a
    tokenizer runs in the container.
    """
    code = served.on("trust-remote-code")
    for model in (served.playbook.model, *_beside(served)):
        if model.id is None or re.fullmatch(COMMIT, model.revision):
            continue
        if model is served.playbook.model:
            where, remedy = "model", "write revision: COMMIT under model; stage shows the commit"
        else:
            where, remedy = "args", "write its commit as revision of speculative-config, or as tokenizer-revision"
        if code:
            summary = f"code of {model.label} runs from the branch or tag {model.revision}"
            yield served.say("trust-remote-code", summary, remedy, severity="warning")
        else:
            at = (where, "revision") if where == "model" else (where,)
            yield served.say(at, f"{model.label} is not pinned: {model.revision} is a branch or tag", remedy)


def _beside(served: Served) -> list[Companion]:
    """Drafters and tokenizers; adapters have no code and no revision, and another check reports invalid revisions."""
    adapters = str(served.values.get("lora-modules"))
    with contextlib.suppress(UsageError):
        return [each for each in served.playbook.companions if str(each.id) not in adapters]
    return []


def _commands(served: Served) -> Iterator[tuple[KeyPath, str]]:
    """Every shell line and the command, with their paths."""
    for index, line in enumerate(served.playbook.setup):
        yield ("setup", index), line
    if served.playbook.command:
        yield ("command",), " ".join(served.playbook.command)


@rule(
    "SM121-063",
    "The model was trained for the context",
    severity="error",
    source=f"{sources.GUIDE}; 1M of Nemotron 3: there, and https://github.com/vllm-project/recipes/blob/main/models/nvidia/"
    "NVIDIA-Nemotron-3-Super-120B-A12B-BF16.yaml (long_context)",
)
def context(served: Served) -> Iterator[Seen]:
    """Above the context of its training a model does not start, unless VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 is set.

    With that variable Nemotron 3 Nano and Super support 1M; their config.json has 262,144, the default. Other models
    need YaRN too, through `hf-overrides`. It costs quality of short prompts, and a prompt of a million tokens takes
    minutes on a GB10.
    """
    tokens, native = served.number("max-model-len"), served.context
    if tokens is None or native is None or tokens <= native:
        return
    if extends_context(served):
        summary = f"YaRN extends the context from {native} to {int(tokens)} tokens"
        yield served.say("max-model-len", summary, "if prompts are short, remove both", severity="info")
    elif longest_context(served, native) is not None:
        longer = served.model is not None and tokens <= (served.model.longest or 0)
        yarn = f"or write {LONG_MODELS} under env{'' if longer else ', and YaRN under hf-overrides'}"
        summary = f"{int(tokens)} tokens are more than the model's {native}"
        yield served.say("max-model-len", summary, f"write max-model-len: {native}", yarn)


# Where the launcher links the model, drafters and adapters in the container (sparkcluster/node/prepare.py).
OWN = "/sparkcluster/"
WORKSPACE = "/vllm-workspace/examples/"
# Arguments whose value is a file's path; for a chat template it may also be the text.
FILES = ("chat-template", "reasoning-parser-plugin", "tool-parser-plugin")
_TEXT = re.compile(r"\{[{%#]|\n")


@rule(
    "SM121-142",
    "Files that arguments name are in the container",
    source="vllm/entrypoints/chat_utils.py (`appears path-like, but doesn't exist!`); mods that bring such files: "
    f"{sources.EUGR} (mods/fix-qwen3.5-chat-template)",
)
def mounted(served: Served) -> Iterator[Seen]:
    """If the file of a chat template or of a parser's plugin is missing, the engine fails at startup.

    The files of an image are unknown, so this is a warning for a path that is in no mount and in no line of `setup`. A
    recipe's mods, which bring such files, are not part of a playbook. `examples/` is vLLM's own directory, in
    `/vllm-workspace` of its images.
    """
    for flag in FILES:
        path = served.values.get(flag)
        if not isinstance(path, str) or _TEXT.search(path) or path.startswith((OWN, "examples/", WORKSPACE)):
            continue
        if not _brought(served, path):
            remedy = f"add the file's directory to mounts, and set {flag} to its path in the container"
            yield served.say(flag, f"{path[:80]} may be missing in the container: no mount has it", remedy)


def _brought(served: Served, path: str) -> bool:
    """Whether a mount contains the path, or a line before the engine's command names the file."""
    name = PurePosixPath(path).name
    lines = [*served.playbook.setup, *(word for word in served.playbook.command or () if " " in word)]
    before = [line.partition("vllm serve")[0] for line in lines]
    if any(name in line for line in before):
        return True
    return any(PurePosixPath(path).is_relative_to(mount.target) for mount in served.playbook.mounts)


# A reasoning model needs this many tokens to reach an answer.
TOKENS = 512


@rule(
    "SM121-085",
    "Verification of a reasoning model allows enough tokens",
    source=f"512, for tools 1024: {sources.TWO_SPARKS}; 10,000 for Nemotron-3-Nano: {sources.GUIDE}",
)
def budget(served: Served) -> Iterator[Seen]:
    """Reasoning counts against max_tokens; with a reasoning parser `verify` allows 2,048, or turns reasoning off."""
    model, verify = served.model, served.playbook.verifying
    thinking = verify.chat_template_kwargs.get("enable_thinking")
    if model is None or thinking is False or verify.max_tokens >= TOKENS:
        return
    if model.reasoning == "always" or (model.reasoning == "asked" and thinking is True):
        summary = f"{model.name} reasons first, but verify allows only {verify.max_tokens} tokens"
        yield served.say(("verify", "max_tokens"), summary, f"write max_tokens: {TOKENS} or more")


@rule(
    "SM121-086",
    "Tools and reasoning under verify have their parsers",
    severity="error",
    source="docs.vllm.ai, Tool Calling and Reasoning Outputs",
)
def verified(served: Served) -> Iterator[Seen]:
    """The launch would fail after the weights are loaded: tools return HTTP 400, or reasoning is part of the answer."""
    verify = served.playbook.verify
    if verify.tools and not (served.on(CHOICE) and served.text(TOOLS)):
        summary = "verify requires a tool call, but the playbook does not enable tool calls"
        yield served.say(
            ("verify", "tools"), summary, f"write {CHOICE}: true and {TOOLS}: {served.usual_tools} in args"
        )
    if verify.reasoning and not served.text(REASONING):
        summary = "verify requires reasoning, but the playbook sets no reasoning parser"
        yield served.say(("verify", "reasoning"), summary, f"write {REASONING}: {served.usual_reasoning} in args")
