"""What only real machines can tell, gathered for a support bundle: ``first-hour.json`` in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster.errors import SparkclusterError
from sparkcluster.facts.base import Fact, Few, Raw, Unread, read
from sparkcluster.facts.collect import collect_facts
from sparkcluster.facts.docker import EngineFacts, Image
from sparkcluster.facts.model import Facts
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.program import call
from sparkcluster.plan.docker_run import limits
from sparkcluster.report import Report, count
from sparkcluster.runtime import Changer
from sparkcluster.runtime.lease import Lease
from sparkcluster.spec import Spec, consent
from sparkcluster.staging.copy_request import Settings
from sparkcluster.staging.run import stage
from sparkcluster.topology.model import Topology

SIZE_BYTES = 1 << 20
_LIMIT_S = 180
_REFERENCE = "sparkcluster-first-hour:latest"


class Place(Fact):
    """A directory of Hugging Face's cache, or why it could not be read."""

    path: str
    owner: str | None = None
    mode: str | None = None
    writable: bool | None = None
    unread: str | None = None


class Inside(Fact):
    """What a container of the image has: limits (soft, hard), HCAs that libibverbs finds, versions of ptxas by path."""

    uid: int
    limits: dict[str, tuple[int, int]]
    verbs: int | str
    ptxas: dict[str, str]


class Look(Fact):
    """The answer of the node program; ``hub`` says whether huggingface.co can be reached from the node."""

    show_gids: Raw
    cache: Few[Place]
    hub: str
    containers: dict[str, Inside | Unread]


class Tried(Fact):
    """The end of ``make`` or ``remove``."""

    done: dict[str, Any] | None = None
    failed: str | None = None
    refused: str | None = None


def gather(
    fleet: Fleet, spec: Spec, facts: Mapping[str, Facts], topology: Topology | None, report: Report, *, changes: bool
) -> dict[str, Any]:
    """The document, of the nodes that answered; what was not gathered is there with the reason.

    ``changes``: whether containers of the image are started, and a small image is copied between the first two nodes,
    under the lease, and removed.
    """
    if changes:
        consent.require(spec)
    report.step("bundle", count(len(facts), "Spark"))

    def look(host: Host) -> Look:
        request = {"do": "look", "hf_home": facts[host.name].hf_home, **_containers(facts[host.name], start=changes)}
        return call(host, "first_hour", request, answer=Look, timeout_s=_LIMIT_S)

    looks = fleet.each(look, facts)
    copies: list[dict[str, Any]] | str = "only preflight copies one"
    if changes:
        copies = _copies(fleet, spec, facts, topology, report)
    nodes = {name: {**_known(facts[name]), **_looked(seen)} for name, seen in looks.items()}
    return {"nodes": nodes, "image_copies": copies}


def _looked(seen: Look | SparkclusterError) -> dict[str, Any]:
    """What the node program said, or why it said nothing."""
    if isinstance(seen, SparkclusterError):
        return {"unread": seen.message}
    return seen.model_dump(mode="json", exclude_none=True)


def _known(facts: Facts) -> dict[str, Any]:
    """What the facts of a node have of it."""
    image = facts.image if isinstance(facts.image, Image) else None
    inside = image.inside if image is not None and isinstance(image.inside, EngineFacts) else None
    docker = read(facts.docker)
    return {
        "image_store": docker.model_dump(include={"version", "storage_driver", "containerd_store", "images_dir"})
        if docker is not None
        else None,
        "memory": facts.memory.model_dump(),
        "gids": [
            {"hca": hca.name, **gid.model_dump(mode="json")} for hca in read(facts.hcas) or () for gid in hca.gids
        ],
        "image": {
            **image.model_dump(include={"reference", "id", "entrypoint", "user", "labels_vllm", "size_bytes"}),
            "libibverbs": inside.verbs if inside is not None else None,
            "nccl": inside.nccl_loaded if inside is not None else None,
        }
        if image is not None
        else None,
    }


def _containers(facts: Facts, *, start: bool) -> dict[str, Any]:
    """The part of a request that says which containers to start: as Docker starts one, and with a rank's options."""
    image = facts.image
    if not start or not isinstance(image, Image) or not isinstance(image.inside, EngineFacts):
        return {"containers": {}}
    rank = [*limits(), *(["--device", "/dev/infiniband"] if facts.infiniband_devices else [])]
    return {"containers": {"plain": [], "rank": rank}, "image_id": image.id, "python": image.inside.python}


def _copies(
    fleet: Fleet, spec: Spec, facts: Mapping[str, Facts], topology: Topology | None, report: Report
) -> list[dict[str, Any]] | str:
    """A small image copied between the first two nodes, each way, as ``stage`` copies; or why not."""
    names = [member.name for group in topology.groups for member in group.members] if topology is not None else []
    names = [name for name in names if name in facts][:2]
    if topology is None or len(names) < 2:
        return "there are no two nodes"
    if spec.inventory.runtime.kind != "docker":
        return "runtime process has no images"
    inventory = spec.inventory
    lease = Lease(fleet, cluster=inventory.cluster, state_dir=inventory.state_dir, operation="measure", kind="staging")
    try:
        with lease.acquire(names):
            return [_copy(lease.changer, spec, topology, pair, report) for pair in (names, names[::-1])]
    except SparkclusterError as error:
        return error.message


def _copy(changer: Changer, spec: Spec, topology: Topology, pair: Sequence[str], report: Report) -> dict[str, Any]:
    source, target = pair
    small = dataclasses.replace(spec, playbook=spec.playbook.model_copy(update={"image": _REFERENCE}))
    result: dict[str, Any] = {"from": source, "to": target, "bytes": SIZE_BYTES}
    report.progress(target, f"copying an image of 1 MiB from {source}")
    try:
        _do(changer, source, "make")
        found = collect_facts(changer.fleet, small, pair)
        # loaded and removed, and never run
        copied = stage(changer, found.facts, topology, small, what=["image"], settings=Settings(yes=True)).copied
        result["seconds"] = [round(each.seconds, 2) for each in copied]
    except SparkclusterError as error:
        result["failed"] = error.message
    for name in pair:
        try:
            _do(changer, name, "remove")
        except SparkclusterError as error:
            result["left"] = error.message
    return result


def _do(changer: Changer, node: str, what: str) -> None:
    request = {**changer.lease(node), "do": what, "reference": _REFERENCE, "size_bytes": SIZE_BYTES}
    found = call(changer.fleet[node], "first_hour", request, answer=Tried, timeout_s=_LIMIT_S)
    if found.done is None:
        raise SparkclusterError(f"{what} on {node}: {found.failed or found.refused}", node=node, step="first hour")
