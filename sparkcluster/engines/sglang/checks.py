"""Checks of memory, and of ranks that wait for each other when they start."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkcluster.checks.check import AGAIN, Context, Seen, check, node_check
from sparkcluster.checks.memory import misfits
from sparkcluster.checks.running_cluster import RunningCluster, clipped, running_check
from sparkcluster.engines.sglang.flags import arguments
from sparkcluster.engines.sglang.memory import FRACTION, MOST, fraction, takes_share
from sparkcluster.facts.model import Facts
from sparkcluster.facts.running import RankSeen
from sparkcluster.findings import edit, here
from sparkcluster.fit.source import FREE_BYTES

# Older releases log "torch distributed".
_JOINING, _JOINED = (re.compile(rf"Init (?:torch distributed|parallel) {each}") for each in ("begin", "ends"))


@node_check(
    "FIT-007",
    "Weights and one request of full context fit SGLang's part of the free memory",
    needs=("memory", "weights"),
    source="sgl-project/sglang: _profile_available_bytes in srt/mem_cache/kv_cache_configurator.py",
    remedy="set what `sparkcluster fit PLAYBOOK` advises: mem-fraction-static, context-length, or more Sparks",
)
def fits(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """SGLang loads for minutes and fails with `Not enough memory. Please try to increase --mem-fraction-static`.

    `mem-fraction-static` is a share of the memory that is free when SGLang starts. The finding is a warning if the
    model fits, but leaves less free memory than a Spark needs. Nodes without the model are skipped, since its
    config.json is needed. Models on demand are skipped, since other models free their memory before the load.
    """
    return misfits(context, name, facts, keep_bytes=FREE_BYTES)


@check(
    "FIT-008",
    "SGLang leaves memory for the system",
    stage="written",
    severity="warning",
    source="https://github.com/anubhavgupta/Qwen3.6-35b-SGLang-DGX-Spark; sgl-project/sglang#35860",
    remedy=(edit(f"set {FRACTION}: {MOST:.2f} or less in the playbook"), here("sparkcluster fit PLAYBOOK")),
)
def share(context: Context) -> Iterator[Seen]:
    """With a larger share Sparks have frozen until a power cycle: system and GPU share one memory.

    `mem-fraction-static` is a share of the memory that is free when SGLang starts. If it is not set, SGLang takes about
    0.88. With `max-total-tokens` the KV cache is limited, and the share may be larger.
    """
    playbook = context.spec.playbook
    taken, written = fraction(playbook), arguments(playbook).get(FRACTION, "not set")
    if takes_share(playbook) and taken > MOST:
        yield Seen(f"SGLang takes {taken:.2f} of the free memory", f"{FRACTION} is {written}", at=("args", FRACTION))


@running_check(
    "RUN-030",
    "SGLang's ranks connect to each other at startup",
    severity="warning",
    source="MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks#3",
    remedy=(here("sparkcluster preflight INVENTORY", "shows which ports are blocked"), "allow them", AGAIN),
)
def connected(cluster: RunningCluster) -> Iterator[Seen]:
    """The ranks of SGLang share a queue on a port that the kernel chooses, at the address in `SGLANG_HOST_IP`.

    A rank that cannot reach it retries forever, the others wait, and none logs it: the last line is often
    `CustomAllreduce is disabled because this process group spans across nodes.` A firewall that only allows known ports
    has this effect.
    """
    for group, ranks in cluster.groups.items():
        if len(ranks) > 1 and all(rank.running and _joins(rank) for _, rank in ranks):
            seen = f"{clipped(cluster.lines(group)[-1])}; every port of {ranks[0][0]} must be open to the other ranks"
            yield Seen(f"the ranks of {cluster.called(group)} wait for each other to connect", seen)


def _joins(rank: RankSeen) -> bool:
    return any(map(_JOINING.search, rank.lines)) and not any(map(_JOINED.search, rank.lines))
