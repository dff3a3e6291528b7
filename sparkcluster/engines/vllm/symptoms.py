"""Checks of the log of a running vLLM, and what to do about garbage output."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from sparkcluster.checks.check import AGAIN, Seen
from sparkcluster.checks.running_cluster import RunningCluster, clipped, running_check
from sparkcluster.engines.vllm.arguments import of_command
from sparkcluster.engines.vllm.signatures import EAGER, EXPERTS, SCALES
from sparkcluster.facts.running import RankSeen
from sparkcluster.spec.playbook import Playbook

# Checkpoints that may have four-bit experts, for which some kernels are wrong; None if unknown.
FOUR_BITS = (None, "modelopt", "compressed-tensors", "mxfp4")


@running_check(
    "RUN-011",
    "The experts run on the requested kernel",
    source="vllm-project/vllm#31085",
    remedy="use an image whose vLLM has --moe-backend (0.17.1 or newer)",
)
def expert_kernel(cluster: RunningCluster) -> Iterator[Seen]:
    """On sm_121 only Marlin computes FP4 experts correctly; vLLM may choose another kernel silently.

    Checked only where the running release has `moe-backend: marlin`.
    """
    requesting = {rank.group for _, rank in cluster.ranks if _arguments(rank).get("moe-backend") == "marlin"}
    for name, (match, line) in cluster.last_match(EXPERTS).items():
        on_node = {rank.group for node, rank in cluster.ranks if node == name}
        if on_node & requesting and "MARLIN" not in match["name"].upper():
            yield Seen(
                f"the experts on {name} run on {match['name']}, but the playbook requests Marlin",
                clipped(line),
                ("use an image whose vLLM has --moe-backend (0.17.1 or newer)", AGAIN),
                node=name,
            )


def _arguments(rank: RankSeen) -> dict[str, Any]:
    """The engine arguments that a rank was started with."""
    return {name: value for name, value, _ in of_command(rank.launcher.get("engine") or [])}


@running_check(
    "RUN-012",
    "Scales of quantised weights are numbers",
    source="vllm-project/vllm#45212",
    remedy="use a fully calibrated checkpoint, or set `moe-backend: marlin`",
)
def scales(cluster: RunningCluster) -> Iterator[Seen]:
    """An expert with a NaN scale turns every token that reaches it into garbage: some prompts fail, not all."""
    for number, signature in enumerate(SCALES):
        for name, (_, line) in cluster.last_match(signature.pattern).items():
            summary = f"{signature.summary}, on {name}"
            yield Seen(
                summary, clipped(line), (signature.hint or AGAIN,), severity="warning" if number else "error", node=name
            )
            break


@running_check(
    "RUN-018",
    "CUDA graphs are enabled",
    severity="warning",
    source="vllm-project/vllm#34523",
    remedy="remove enforce-eager in the playbook",
)
def eager(cluster: RunningCluster) -> Iterator[Seen]:
    """With --enforce-eager a Spark generated 26 tokens a second instead of 59.

    Info if the playbook sets it, which lint reports; a warning if vLLM fell back to it.
    """
    found = cluster.last_match(EAGER.pattern)
    for ranks in cluster.groups.values():
        name = next((name for name, _ in ranks if name in found), None)
        if name is None:
            continue
        requested = any(_arguments(rank).get("enforce-eager") for _, rank in ranks)
        summary = f"the engine on {name} runs without CUDA graphs" + (", as the playbook requests" if requested else "")
        remedy = (EAGER.hint or "", AGAIN)
        yield Seen(summary, clipped(found[name][1]), remedy, severity="info" if requested else "warning", node=name)


def garbage_remedy(playbook: Playbook, lines: Sequence[str]) -> str | None:
    """Suggests Marlin if four-bit experts may run on another kernel; None if weights or caches are more likely."""
    used = next((found["name"] for line in reversed(lines) if (found := re.search(EXPERTS, line))), None)
    used = used or str(playbook.args.get("moe-backend", ""))
    if playbook.model.checkpoint not in FOUR_BITS or "MARLIN" in used.upper():
        return None
    return "set moe-backend: marlin under args in the playbook, then sparkcluster down INVENTORY and up again"
