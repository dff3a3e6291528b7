"""Facts from all nodes, queried in parallel in one round trip; a node that does not answer is a finding."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkcluster import output_file
from sparkcluster.answers import malformed
from sparkcluster.errors import AuthFailed, HostError, HostListedTwice, SparkclusterError, UsageError
from sparkcluster.facts.base import Fact, Unread, read
from sparkcluster.facts.docker import EngineFacts, Image
from sparkcluster.facts.machine import doubles
from sparkcluster.facts.model import Facts
from sparkcluster.facts.parse import parse, parse_engine
from sparkcluster.facts.probe import Answer, begin
from sparkcluster.findings import Finding
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Calls, Fleet, all_values
from sparkcluster.hosts.program import call, source
from sparkcluster.spec import Spec

COLLECT_S = 900.0
IMAGE_S = 120


@dataclasses.dataclass(frozen=True, slots=True)
class Collected:
    """Facts by node, and the errors of nodes that did not answer or are listed twice.

    ``also``: for each of the other specs, in order, the facts with its image, weights and record.
    """

    facts: dict[str, Facts]
    errors: dict[str, SparkclusterError]
    also: tuple[dict[str, Facts], ...] = ()

    def findings(self) -> list[Finding]:
        """A finding for each node that did not answer."""
        return [unreachable(name, error) for name, error in self.errors.items()]


def node_documents(
    spec: Spec, facts: Mapping[str, Facts], errors: Mapping[str, SparkclusterError]
) -> dict[str, dict[str, Any]]:
    """The answer of every node of the inventory in the stable format, or the reason why it is missing."""
    return {
        node.label: facts[node.label].model_dump(mode="json")
        if node.label in facts
        else {"unread": str(errors.get(node.label, "was not queried"))}
        for node in spec.inventory.nodes
    }


def unreachable(name: str, error: SparkclusterError) -> Finding:
    """A HostError as a finding."""
    code = error.code if isinstance(error, HostError) else HostError.code
    return error.finding(
        code,
        node=name,
        summary=error.message.removeprefix(f"{name}: "),
        why="a group is started on all of its nodes or not at all",
        step="ssh-key" if isinstance(error, AuthFailed) else None,
    )


def clock(sent_s: float, received_s: float, reported_s: float, probe_s: float) -> tuple[float, float]:
    """How far a node's clock is ahead, and the maximum error of that; both in seconds.

    The node read its clock when the probe started, between ``sent_s`` and ``probe_s`` seconds before ``received_s``.
    The middle of that interval is wrong by half its length at most.

    Args:
        sent_s: this machine's clock right before the probe was sent.
        received_s: this machine's clock when the answer had arrived.
        reported_s: the node's clock as reported by the probe.
        probe_s: run time of the probe as it reported.
    """
    latest_s = received_s - probe_s if 0 <= probe_s <= received_s - sent_s else received_s
    error_s = max(0.0, latest_s - sent_s) / 2
    return reported_s - (sent_s + error_s), error_s


def collect_facts(
    fleet: Fleet,
    spec: Spec,
    names: Sequence[str] | None = None,
    *,
    kernel_log: bool = False,
    limit_s: float = COLLECT_S,
    probes: Calls[Answer] | None = None,
    also: Sequence[Spec] = (),
) -> Collected:
    """Collect the facts of every node (or ``names``) in parallel.

    Reading the kernel log as well takes about 20 ms. ``limit_s`` applies to a node, connecting included. ``probes`` are
    probes that ``facts.probe.begin`` has already sent. For the specs in ``also``, image, weights and record are read.
    """
    calls = probes or begin(fleet, spec, names, kernel_log=kernel_log, also=also)
    facts: dict[str, Facts] = {}
    others: tuple[dict[str, Facts], ...] = tuple({} for _ in also)
    errors: dict[str, SparkclusterError] = {}
    for name, outcome in calls.wait(limit_s).items():
        if isinstance(outcome, SparkclusterError):
            errors[name] = outcome
            continue
        try:
            parts = outcome.document.pop("also", [])
            if not isinstance(parts, list) or [type(each) for each in parts] != [dict] * len(also):
                raise malformed(name, "probe", "also")
            found = parse(name, outcome.document)
            offset_s, error_s = clock(outcome.sent_s, outcome.received_s, found.clock_s, found.probe_s)
            update = {"clock_offset_s": round(offset_s, 4), "clock_error_s": round(error_s, 4)}
            for of_spec, part in zip(others, parts, strict=True):
                of_spec[name] = parse(name, {**outcome.document, **part}).model_copy(update=update)
        except SparkclusterError as error:
            errors[name] = error
            continue
        facts[name] = found.model_copy(update=update)
    twice = listed_twice(spec, facts)
    return Collected({name: found for name, found in facts.items() if name not in twice}, errors | twice, others)


def listed_twice(spec: Spec, facts: Mapping[str, Facts]) -> dict[str, SparkclusterError]:
    """The error of each node that is the same machine as an earlier node of the inventory. Pure.

    Its facts would be compared with themselves and give false findings: conflicting addresses, a missing rail.
    """
    hosts = {node.label: node.host for node in spec.inventory.nodes}
    ordered = {name: facts[name] for name in hosts if name in facts}

    def named(node: str) -> str:
        return node if node == hosts[node] else f"{node} (host: {hosts[node]})"

    return {
        name: HostListedTwice(
            f"{named(name)} is the same machine as {named(first)}",
            node=name,
            step="connect",
            hint="remove one of them from nodes in INVENTORY, or correct its host",
        )
        for name, first in doubles(ordered).items()
    }


def inspect_images(fleet: Fleet, spec: Spec, facts: dict[str, Facts], *, kept: Path | None = None) -> dict[str, Facts]:
    """Read the content of images that are not cached yet: takes seconds, once per image.

    ``kept`` is a directory on this machine that caches results, so that nothing is written on a node; None caches on
    the nodes. A node's answer about an image is cached for that node only, since any node can claim an image ID.
    """
    images = {
        name: image for name, node_facts in facts.items() if (image := read(node_facts.image)) and image.inside is None
    }
    engine = spec.playbook.engine

    def ask(host: Host) -> EngineFacts | Unread:
        image = images[host.name]
        file = kept and kept / _name(host.name, spec, image)
        if file is not None:
            with contextlib.suppress(OSError, ValueError):
                return EngineFacts.model_validate_json(file.read_bytes())
        request = {"state_dir": spec.inventory.state_dir, "image_id": image.id, "keep": kept is None}
        document = call(host, "image", request, answer=dict[str, Any], timeout_s=IMAGE_S, engine=engine)
        inside = parse_engine(document)
        if file is not None and isinstance(inside, EngineFacts):
            with contextlib.suppress(OSError, UsageError):  # the next run reads the image again
                file.parent.mkdir(parents=True, exist_ok=True)
                content = inside.model_dump_json().encode()
                output_file.write(file, lambda out: out.write(content), private=True)
        return inside

    inspected = dict(facts)
    for name, outcome in (fleet.each(ask, images) if images else {}).items():
        inside = Unread(unread=outcome.message) if isinstance(outcome, SparkclusterError) else outcome
        image = images[name].model_copy(update={"inside": inside})
        inspected[name] = facts[name].model_copy(update={"image": image})
    return inspected


class Gpus(Fact):
    """Number of GPUs in a container, None if unknown; or why there is no GPU."""

    gpus: int | None = None
    unread: str | None = None


def without_gpu(fleet: Fleet, images: Mapping[str, str]) -> dict[str, str]:
    """Why a container of the image has no GPU, by node, for nodes without one; ``images`` are image IDs by node.

    NVIDIA's container toolkit provides no GPU if, for example, the image requires a newer driver.

    Raises:
        SparkclusterError: a node did not answer.
    """

    def ask(host: Host) -> Gpus:
        return call(host, "image", {"image_id": images[host.name], "count": "gpus"}, answer=Gpus, timeout_s=IMAGE_S)

    found: dict[str, str] = {}
    for name, answer in all_values(fleet.each(ask, images)).items():
        if answer.unread is not None or answer.gpus == 0:
            found[name] = answer.unread or "nvidia-smi lists none"
    return found


def _name(node: str, spec: Spec, image: Image) -> str:
    """Name of the cache file of ``image`` on ``node``; it changes with the programs that read the image."""
    host = next(entry.host for entry in spec.inventory.nodes if entry.label == node)
    sources = [source(name, spec.playbook.engine) for name in ("engine", "interpreter", "image")]
    question = json.dumps([spec.inventory.cluster, node, host, *sources])
    return f"{image.id.replace(':', '-')}-{hashlib.sha256(question.encode()).hexdigest()[:24]}.json"
