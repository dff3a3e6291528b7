"""Rules on how a rank is started: its command, its environment, and what it opens to others."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkcluster.checks.registry import Seen
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule
from sparkcluster.spec import KeyPath, variables

_SERVE = re.compile(r"\bvllm\s+serve\s+(?:\S*/)?vllm\s+serve\b")
_PER_NODE = variables.per_node("vllm")
_ASSIGNED = re.compile(r"\b(" + "|".join(sorted(_PER_NODE)) + r")=")
_OPEN_RAY = re.compile(r"--dashboard-host[= ]+(0\.0\.0\.0|::)")
_RAY = re.compile(r"\bray\s+start\b")

# What the plan sets on every rank, and what happens to those who set it otherwise.
PLANNED = {
    "RAY_memory_monitor_refresh_ms": ("0", "Ray kills ranks that merely fill the one memory"),
    "NCCL_NET_PLUGIN": ("none", "a plugin that the image brings may fall back to TCP"),
    "NCCL_IB_ROCE_VERSION_NUM": ("2", "the interconnect speaks RoCE v2 alone"),
}


@rule("SM121-120", "`vllm serve` stands once", severity="error", source=sources.GUIDE)
def twice(served: Served) -> Iterator[Seen]:
    """`vllm serve vllm serve MODEL` ends with `unrecognized arguments: serve`.

    Upstream's images have `vllm serve` as their entrypoint and NGC's have not, so guides differ in what stands behind
    the image. sparkcluster replaces or keeps the entrypoint by itself and always runs the whole command.
    """
    for at, line in _commands(served):
        if _SERVE.search(line):
            yield served.say("error", at, "`vllm serve` stands twice", "keep one of the two")


@rule("SM121-121", "The command begins with a program", severity="error", source=sources.GUIDE)
def program(served: Served) -> Iterator[Seen]:
    """What stands behind an upstream image in a guide is a model and flags, for an entrypoint that is not used here."""
    command = served.playbook.command
    if command and (command[0].startswith("-") or re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", command[0])):
        remedy = "write model: and args: in place of command, or begin it with vllm, serve"
        yield served.say("error", ("command", 0), f"command begins with {command[0]}, which is no program", remedy)


@rule("SM121-122", "The model can be divided", severity="error", source=sources.GUIDE)
def divided(served: Served) -> Iterator[Seen]:
    """Gemma 4 26B-A4B in NVFP4 runs on one rank alone: its experts can be spread, its layers not divided."""
    tensor = served.playbook.tensor_parallel
    ranks = served.nodes // served.playbook.pipeline_parallel if tensor == "auto" else tensor
    if served.model and served.model.tensor_one and served.weights == "nvfp4" and ranks > 1:
        at: KeyPath = ("tensor_parallel",)
        summary = f"{served.model.name} cannot be divided among {ranks} ranks"
        remedy = "write tensor_parallel: 1, and one node for each group in the inventory"
        yield served.say("error", at, summary, remedy)


@rule(
    "SM121-123",
    "Interfaces are named for each node",
    severity="error",
    source="https://github.com/vllm-project/vllm/issues/40991; sparkrun issue 135",
)
def interfaces(served: Served) -> Iterator[Seen]:
    """A line that sets NCCL_SOCKET_IFNAME or the like does so on every node, where names and addresses differ."""
    for at, line in _commands(served):
        for name in sorted(set(_ASSIGNED.findall(line))):
            summary = f"{name} is set alike on every node"
            yield served.say("error", at, summary, "take it out: sparkcluster sets it for each node")


@rule("SM121-124", "Baked interfaces are overridden", severity="info", source="vLLM and NGC images")
def baked(served: Served) -> Iterator[Seen]:
    """An image that brings NCCL_SOCKET_IFNAME or the like names an interface of the machine it was built for.

    sparkcluster sets these for each node, so what is baked does not count; by hand it would.
    """
    found = sorted(served.baked & _PER_NODE)
    if found:
        summary = f"the image sets {', '.join(found)}, which sparkcluster overrides"
        yield served.say("info", ("image",), summary, "nothing, unless you start the image by hand")


@rule("SM121-125", "What every rank needs is not set otherwise", source=sources.TWO_SPARKS)
def planned(served: Served) -> Iterator[Seen]:
    """The plan sets them on every rank, for what has gone wrong without; the playbook's `env` wins over it."""
    for name, (value, why) in PLANNED.items():
        if served.playbook.env.get(name, value) != value:
            yield served.say("warning", ("env", name), f"{name} is set otherwise: {why}", f"take {name} out of env")


@rule("SM121-126", "Ray stays on the interconnect", severity="error", source="docs.ray.io, Security")
def open_ray(served: Served) -> Iterator[Seen]:
    """Ray's job API runs whatever it is sent, by whoever reaches it.

    sparkcluster starts Ray on the interconnect's address, without dashboard and with a token; a line of one's own
    that starts it comes on top of that.
    """
    for at, line in _commands(served):
        if _OPEN_RAY.search(line):
            yield served.say("error", at, "Ray's dashboard is opened to every network", "take the line out")
        elif _RAY.search(line):
            yield served.say("warning", at, "Ray is started a second time", "take the line out, sparkcluster starts it")


@rule("MDL-004", "The repository's own code is pinned", severity="info", source="docs.vllm.ai, Security")
def remote_code(served: Served) -> Iterator[Seen]:
    """`--trust-remote-code` runs Python from the model's repository; of a branch, whatever stands there tomorrow."""
    model = served.playbook.model
    pinned = re.fullmatch(r"[0-9a-f]{40}", model.revision) or model.id is None
    if served.on("trust-remote-code") and not pinned:
        at = served.path("trust-remote-code")
        summary = f"code of {model.label} is run, at whatever {model.revision} is"
        yield served.say("info", at, summary, "write model.revision: COMMIT once it serves")


@rule("SPEC-008", "Requests read no files of the container", source="docs.vllm.ai, Multimodal Inputs")
def local_media(served: Served) -> Iterator[Seen]:
    """`--allowed-local-media-path /` lets requests read any file that the container sees, secrets with them."""
    if served.text("allowed-local-media-path") == "/":
        at = served.path("allowed-local-media-path")
        remedy = "mount a directory for media, and name that one"
        yield served.say("warning", at, "requests may read every file in the container", remedy)


@rule("SM121-130", "Media are allowed where they are meant", severity="info", source=sources.GUIDE)
def media(served: Served) -> Iterator[Seen]:
    """Without `--limit-mm-per-prompt` the Omni model's requests are held to vLLM's defaults for each kind of media."""
    if served.named("Nemotron 3 Nano Omni") and "limit-mm-per-prompt" not in served.flags:
        at = served.path("limit-mm-per-prompt")
        remedy = 'write limit-mm-per-prompt: {"video": 1, "image": 1, "audio": 1}'
        yield served.say("info", at, "media in requests are left to vLLM's limits", remedy)


def _commands(served: Served) -> Iterator[tuple[KeyPath, str]]:
    """Every shell line and the command, with where they stand."""
    for index, line in enumerate(served.playbook.setup):
        yield ("setup", index), line
    if served.playbook.command:
        yield ("command",), " ".join(served.playbook.command)
