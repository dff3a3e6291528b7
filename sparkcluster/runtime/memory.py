"""Memory of the nodes: dropping the page cache before ranks start, and checking what remains after they ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from sparkcluster import engines
from sparkcluster.facts.base import Fact, read
from sparkcluster.facts.docker import Rank
from sparkcluster.facts.model import Facts
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import values
from sparkcluster.hosts.program import call
from sparkcluster.node.shared import LABEL_RANK_DIR, SHARED_MEMORY, SHARED_NAME, hub_folder
from sparkcluster.plan import paths
from sparkcluster.plan.model import NodePlan
from sparkcluster.printable import shell
from sparkcluster.report import Report, size
from sparkcluster.runtime import observed
from sparkcluster.runtime.change import Changer, Step
from sparkcluster.spec.playbook import Playbook

RETURN_S = 60
"""Time limit for a rank's memory to be freed after it ended."""
EVICT_S = 60
IMPORTED_BYTES = 8 * 2**30
"""Estimate of what an engine reads from its image before it checks MemFree: PyTorch and the CUDA libraries."""


class SharedFile(Fact):
    """A file in /dev/shm that a rank left behind."""

    name: Annotated[str, Field(pattern=SHARED_NAME, max_length=255)]
    size_bytes: int
    owner: str


class Remains(Fact):
    """What ranks left behind on a node; ``difference_bytes`` includes normal fluctuation."""

    missing_bytes: int = 0
    difference_bytes: int = 0
    waited_s: int = 0
    shm: tuple[SharedFile, ...] = ()


def watch_return(changer: Changer, ranks: Mapping[str, Sequence[Rank]], report: Report) -> None:
    """Wait until the memory of stopped ranks is free again, and report what is not. Raises nothing.

    Nothing is changed, so no other change of the node has to wait.
    """
    directories = {name: [rank.labels.get(LABEL_RANK_DIR, "") for rank in each] for name, each in ranks.items() if each}

    def wait(host: Host) -> Remains:
        report.progress(host.name, f"waiting up to {RETURN_S} s for its memory to be freed")
        request = {"rank_dirs": directories[host.name], "limit_s": RETURN_S}
        return call(host, "memory", request, answer=Remains, timeout_s=RETURN_S + 30)

    for name, found in values(changer.fleet.each(wait, directories)).items():
        observed.note(changer.cluster, "stop", node=name, **found.model_dump())
        for text in remains(name, found):
            report.note(text)


def remains(node: str, found: Remains) -> list[str]:
    """A warning about what ranks left behind on ``node``, and a hint; empty if nothing is left."""
    files = {f"{SHARED_MEMORY}/{file.name}": file for file in found.shm}
    parts = [f"{path} was not removed ({size(file.size_bytes)}, owner {file.owner})" for path, file in files.items()]
    hints = [f"if {shell('sudo fuser -v', *files)} shows no program: {shell('sudo rm', *files)}"] if files else []
    if found.missing_bytes:
        parts.append(f"{size(found.missing_bytes)} not freed {found.waited_s} s after its rank ended")
        hints.append("stop other programs that use the GPU (nvidia-smi); if there are none, reboot the node")
    return [f"warning: {node}: {'; '.join(parts)}", f"hint: on {node}: {'; '.join(hints)}"] if parts else []


def evict(
    changer: Changer, playbook: Playbook, nodes: Mapping[str, NodePlan], facts: Mapping[str, Facts], report: Report
) -> None:
    """Drop the weights and images of ranks that will start on ``nodes`` from the page cache.

    CUDA on a Spark allocates from MemFree and counts the page cache as used (source: check HOST-022). Raises nothing.
    """
    steps: dict[str, list[Step]] = {}
    for name, node in nodes.items():
        steps[name] = [evict_step(playbook, facts[name], node.containers[0].image)]
        report.progress(name, f"dropping its page cache, up to {EVICT_S} s")
    for name, (found,) in values(changer.attempt(steps, timeout_s=EVICT_S + 30)).items():
        observed.note(changer.cluster, "evict", node=name, **found.model_dump())
        if found.image_failed:
            report.note(f"{name}: the page cache of the image was not dropped: {found.image_failed}")


def evict_step(playbook: Playbook, facts: Facts, image: str | None) -> Step:
    """The agent's step that drops the weights of a playbook, and its ``image``, from the page cache of a node.

    Only if MemFree is less than the engine needs: files that stay cached need not be read from the disk again. MemFree
    is compared again after the weights are dropped, since dropping the image takes a container and so some seconds.
    """
    memory, engine, enough = read(facts.memory), engines.engine(playbook.engine), None
    if memory and engine.takes_share(playbook):
        enough = int(memory.total_bytes * engine.memory_share(playbook, facts)) + IMPORTED_BYTES
    models = [model.id for model in (playbook.model, *playbook.companions) if model.id]
    weights = [f"{facts.hf_home}/{hub_folder(each)}" for each in models]
    if playbook.model.path is not None:
        weights.append(paths.expand(playbook.model.path, facts.home))
    return {"do": "evict", "paths": weights, "image": image, "enough_bytes": enough, "limit_s": EVICT_S}
