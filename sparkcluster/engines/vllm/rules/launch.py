"""Rules on how a rank is started: its command, its environment, and what it exposes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from sparkcluster.checks.registry import Seen
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

# What the plan sets on every rank, and what happens with another value.
PLANNED = {
    "RAY_memory_monitor_refresh_ms": ("0", "Ray kills ranks that fill the shared memory"),
    "NCCL_NET_PLUGIN": ("none", "a plugin of the image may fall back to TCP"),
    "NCCL_IB_ROCE_VERSION_NUM": ("2", "the interconnect uses RoCE v2"),
}


@rule("SM121-120", "`vllm serve` is written once", severity="error", source=sources.GUIDE)
def twice(served: Served) -> Iterator[Seen]:
    """`vllm serve vllm serve MODEL` fails with `unrecognized arguments: serve`.

    Upstream's images have `vllm serve` as their entrypoint and NGC's have not, so guides differ in what follows the
    image. sparkcluster replaces or keeps the entrypoint itself and always runs the whole command.
    """
    for at, line in _commands(served):
        if _SERVE.search(line):
            yield served.say(at, "duplicate `vllm serve`", "remove one of the two")


@rule("SM121-121", "The command begins with a program", severity="error", source=sources.GUIDE)
def program(served: Served) -> Iterator[Seen]:
    """What follows an upstream image in a guide is a model and flags, for an entrypoint that is not used here."""
    command = served.playbook.command
    if command and (command[0].startswith("-") or re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", command[0])):
        remedy = "write model: and args: instead of command, or begin it with vllm, serve"
        yield served.say(("command", 0), f"command begins with {command[0]}, which is not a program", remedy)


@rule("SM121-122", "The model can be split", severity="error", source=sources.GUIDE)
def divided(served: Served) -> Iterator[Seen]:
    """Gemma 4 26B-A4B in NVFP4 runs on one rank only: its experts can be distributed, its layers not split."""
    tensor = served.playbook.tensor_parallel
    ranks = served.nodes // served.playbook.pipeline_parallel if tensor == "auto" else tensor
    if served.model and served.model.tensor_one and served.weights == "nvfp4" and ranks > 1:
        remedy = "write tensor_parallel: 1, and one node for each group in the inventory"
        yield served.say(("tensor_parallel",), f"{served.model.name} cannot be split across {ranks} ranks", remedy)


@rule(
    "SM121-123",
    "Interfaces are set per node",
    severity="error",
    source="https://github.com/vllm-project/vllm/issues/40991; sparkrun issue 135",
)
def interfaces(served: Served) -> Iterator[Seen]:
    """A line that sets NCCL_SOCKET_IFNAME or the like does so on every node, where names and addresses differ."""
    for at, line in _commands(served):
        for name in sorted(set(_ASSIGNED.findall(line))):
            yield served.say(at, f"{name} is the same on every node", "remove it: sparkcluster sets it for each node")


@rule("SM121-124", "Interfaces set by the image are overridden", severity="info", source="vLLM and NGC images")
def baked(served: Served) -> Iterator[Seen]:
    """An image that sets NCCL_SOCKET_IFNAME or the like names an interface of the machine it was built for.

    sparkcluster sets these for each node, so the image's values have no effect; without sparkcluster they have.
    """
    found = sorted(served.baked & _PER_NODE)
    if found:
        summary = f"the image sets {', '.join(found)}, which sparkcluster overrides"
        yield served.say(("image",), summary, "nothing, unless you start the image by hand")


@rule("SM121-125", "Variables that every rank needs are not changed", source=sources.TWO_SPARKS)
def planned(served: Served) -> Iterator[Seen]:
    """The plan sets them on every rank, since launches have failed without them; the playbook's `env` overrides it."""
    for name, (value, why) in PLANNED.items():
        if served.playbook.env.get(name, value) != value:
            yield served.say(("env", name), f"{name} is changed: {why}", f"remove {name} from env")


@rule("SM121-126", "Ray is reachable on the interconnect only", severity="error", source="docs.ray.io, Security")
def open_ray(served: Served) -> Iterator[Seen]:
    """Ray's job API runs whatever it is sent, by anyone who reaches it.

    sparkcluster starts Ray on the interconnect's address, without dashboard and with a token; a line in the playbook
    that starts it comes in addition.
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
    """A Spark has one GPU, number 0: with CUDA_VISIBLE_DEVICES=1 CUDA sees none, and the engine fails at startup.

    CUDA ignores what follows an index that is not there, so `0,1` is the same as `0`. A UUID is that of one node's GPU.
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
    """The owner of a branch can change it; `up` and `stage` report a commit that is not the one first staged.

    With `--trust-remote-code` this is a warning: Python from the repositories of the model, of a drafter, or of a
    tokenizer runs in the container.
    """
    code = served.on("trust-remote-code")
    for model in (served.playbook.model, *_beside(served)):
        if model.id is None or re.fullmatch(COMMIT, model.revision):
            continue
        if model is served.playbook.model:
            where, remedy = "model", "write revision: COMMIT under model; stage says which it brought"
        else:
            where, remedy = "args", "write its commit as revision of speculative-config, or as tokenizer-revision"
        if code:
            summary = f"code of {model.label} is run, at whatever {model.revision} is"
            yield served.say("trust-remote-code", summary, remedy, severity="warning")
        else:
            at = (where, "revision") if where == "model" else (where,)
            yield served.say(at, f"{model.label} is at whatever {model.revision} is", remedy)


def _beside(served: Served) -> list[Companion]:
    """Drafters and tokenizers; adapters have no code and take no revision, and a bad revision is another error."""
    adapters = str(served.values.get("lora-modules"))
    with contextlib.suppress(UsageError):
        return [each for each in served.playbook.companions if str(each.id) not in adapters]
    return []


@rule("SPEC-008", "Requests cannot read files of the container", source="docs.vllm.ai, Multimodal Inputs")
def local_media(served: Served) -> Iterator[Seen]:
    """`--allowed-local-media-path /` lets requests read every file of the container, secrets included."""
    flag = "allowed-local-media-path"
    if served.text(flag) == "/":
        remedy = "mount a directory for media, and write that path"
        yield served.say(flag, "requests can read every file in the container", remedy)


@rule("SM121-130", "The number of media in a request is limited", severity="info", source=sources.GUIDE)
def media(served: Served) -> Iterator[Seen]:
    """Without `--limit-mm-per-prompt`, vLLM's defaults limit each kind of media in requests to the Omni model."""
    flag = "limit-mm-per-prompt"
    if served.named("Nemotron 3 Nano Omni") and flag not in served.values:
        remedy = f'write {flag}: {{"video": 1, "image": 1, "audio": 1}}'
        yield served.say(flag, f"{flag} is not set", remedy)


def _commands(served: Served) -> Iterator[tuple[KeyPath, str]]:
    """Every shell line and the command, with their paths."""
    for index, line in enumerate(served.playbook.setup):
        yield ("setup", index), line
    if served.playbook.command:
        yield ("command",), " ".join(served.playbook.command)
