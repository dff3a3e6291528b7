"""Stages weights and image on every node that lacks them: one download at most, then from node to node.

Drafters, adapters and tokenizers of their own (``Playbook.companions``) are staged as weights of a playbook that serves
them alone. Ray is staged apart (``staging.ray``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkcluster.errors import StageError
from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.model import Facts
from sparkcluster.node.shared import hub_folder
from sparkcluster.runtime import Changer
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import Companion
from sparkcluster.staging import build, copy_weights, local_image, local_weights, ownership, playbook_files, vocabulary
from sparkcluster.staging.artifacts import Artifact, Request
from sparkcluster.staging.copy import RESUME
from sparkcluster.staging.downloads import Downloads
from sparkcluster.staging.image_copy import ImageCopy
from sparkcluster.staging.plan import Staging, check_disk_space, find_missing, no_weights
from sparkcluster.staging.transfers import Copied, SendingTo, Transfers

if TYPE_CHECKING:
    from sparkcluster.staging.expected import Expected
    from sparkcluster.staging.trust import Corrupt


@dataclasses.dataclass(frozen=True, slots=True)
class StageReport:
    """What was to be staged and, unless it was a dry run, what was copied.

    Attributes:
        verified: nodes of which every byte of a model was read, by the model.
        corrupt: copies that were found to be wrong, and were replaced.
        warnings: of copies that left the interconnect.
        expected: in a dry run, what would move, by the name of the artifact.
    """

    stagings: tuple[Staging, ...]
    copied: tuple[Copied, ...] = ()
    verified: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    corrupt: tuple[Corrupt, ...] = ()
    warnings: tuple[str, ...] = ()
    expected: Mapping[str, tuple[Expected, ...]] = dataclasses.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "staging": [staging.as_json() for staging in self.stagings],
            "copied": [dataclasses.asdict(copied) for copied in self.copied],
            "verified": {model: list(nodes) for model, nodes in self.verified.items()},
            "corrupt": [dataclasses.asdict(corrupt) for corrupt in self.corrupt],
            "warnings": list(self.warnings),
            "expected": {name: [dataclasses.asdict(each) for each in moves] for name, moves in self.expected.items()},
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Needed:
    """An artifact, and what nodes lack of it.

    Attributes:
        spec: of a repository beside the model that of a playbook which serves nothing else.
        given: where on this machine it is, if no node has it.
        files: what is sent from this machine to each node; None where nodes copy it from each other.
    """

    spec: Spec
    staging: Staging
    given: Path | None = None
    files: SendingTo | None = None


def find(run: Transfers, spec: Spec, what: Sequence[Artifact], given: Path | None = None) -> list[Needed]:
    """What nodes lack of the image and the weights, with all that belongs to these, as far as ``what`` has them.

    ``given`` is where on this machine the one artifact of ``what`` is, for the case that no node has it.

    Raises:
        StageError: nobody has it, what is given cannot be used, or a disk is too small; nothing was changed.
    """
    found = []
    if "image" in what and spec.inventory.runtime.kind == "docker" and spec.image:
        found.append(_needed(run, spec, "image", given))  # first: it may hold the downloader of the weights
    if "weights" in what:
        for model in (spec.playbook.model, *spec.playbook.companions):
            playbook = spec.playbook.model_copy(update={"model": model})
            found.append(_needed(run, dataclasses.replace(spec, playbook=playbook), "weights", given))
        for source in (vocabulary, playbook_files):
            found += [Needed(spec, staging, files=files) for staging, files in source.find_missing(spec, run.facts)]
    return found


def _needed(run: Transfers, spec: Spec, what: Artifact, given: Path | None) -> Needed:
    facts = _facts(run.facts, spec)
    staging = find_missing(facts, run.topology, spec, what)
    size_bytes = None if given is None or staging.sources else _given_bytes(run, spec, staging, given)
    if size_bytes is not None:
        staging = dataclasses.replace(staging, size_bytes=size_bytes)
    elif not staging.sources and not staging.download and len(staging.parts) < 2:
        raise no_weights(facts, staging.nodes[0], spec)
    check_disk_space(facts, staging, spec)
    return Needed(spec, staging, None if size_bytes is None else given)


def _facts(facts: dict[str, Facts], spec: Spec) -> dict[str, Facts]:
    """``facts`` with the weights of the model of ``spec``, which may be one beside that of the playbook."""
    model = spec.playbook.model
    if not isinstance(model, Companion):
        return facts
    found = {}
    for node, its in facts.items():
        weights = its.companions if isinstance(its.companions, Unread) else its.companions.get(str(model.id))
        found[node] = its.model_copy(update={"weights": weights})
    return found


def _given_bytes(run: Transfers, spec: Spec, staging: Staging, given: Path) -> int | None:
    """Bytes of what is given on this machine; None if it is not there, though it need not be."""
    if staging.what == "image":
        return local_image.read(given, staging.name).size_bytes
    place = local_weights.locate(given, spec)
    return None if place is None else local_weights.size_bytes(run, place, spec)


def bring(run: Transfers, changer: Changer, needed: Sequence[Needed]) -> StageReport:
    """Have a node download what none has, then copy everything to those that lack it.

    Raises:
        StageError: with node, cause and hint. What arrived stays, and the next run resumes there.
        RegistryAuth: the registry requires a login.
        LeaseLost: a node has a newer epoch.
    """
    facts = run.facts
    verified: dict[str, tuple[str, ...]] = {}
    corrupt: list[Corrupt] = []
    for each in needed:
        spec, staging = each.spec, each.staging
        run.facts = _facts(facts, spec)
        if staging.missing:
            run.shown.step("copy", f"{staging.what} {staging.name}")
        for node, lacks in staging.missing:
            run.progress(node, f"{staging.what} {lacks}")
        if each.files is not None:
            for node in staging.nodes:
                sent = each.files(facts[node].state_dir)
                run.send(staging.what, node, sent, staging.size_bytes, name=staging.name)
        elif staging.what == "image":
            copy = ImageCopy(run, spec, _source(run, each))
            copy.run()
            facts |= {node: facts[node].model_copy(update={"image": image}) for node, image in copy.images.items()}
        elif staging.missing or run.settings.verify:
            ownership.take(
                changer, spec.playbook.model.id, {node: run.facts[node] for node in staging.nodes}, run.progress
            )
            staging = _source(run, each)
            request = partial(weights_request, run, spec, staging)
            read_on, wrong = copy_weights.copy(run, staging, request, verify=run.settings.verify)
            corrupt += wrong
            if run.settings.verify:
                verified[staging.name] = read_on
    stagings = tuple(each.staging for each in needed)
    return StageReport(stagings, tuple(run.copied), verified, tuple(corrupt), tuple(run.loud))


def _source(run: Transfers, each: Needed) -> Staging:
    """What is left to copy once a node has it whole.

    Raises:
        StageError: what came to the node is not all of it.
    """
    spec, staging = each.spec, each.staging
    if not staging.sources and len(staging.parts) > 1:
        nodes = copy_weights.unite(run, staging, partial(weights_request, run, spec, staging))
        staging = _left(run, spec, staging, nodes)
    if not staging.sources:
        node, *others = _fetch(run, each, staging)
        staging = _left(run, spec, staging, [node, *others])
        if not staging.sources:
            lacks = f"{staging.what} {staging.name} is still incomplete on {node}: {dict(staging.missing)[node]}"
            raise StageError(lacks, node=node, step=f"copy {staging.what}", hint=RESUME)
    return staging


def _fetch(run: Transfers, each: Needed, staging: Staging) -> Sequence[str]:
    """Send what is on this machine, else build or download it; the nodes that got it.

    Where no node reaches the hub, this machine downloads it.
    """
    spec = each.spec
    if each.given is None and staging.what == "image" and spec.build is not None:
        return [build.on_a_node(run, spec, spec.build, staging)]
    found = each.given or Downloads(run, spec, staging).anywhere()
    if isinstance(found, str):
        return [found]
    if staging.what == "image":
        return [local_image.bring(run, staging, local_image.read(found, staging.name))]
    place = local_weights.locate(found, spec)
    if place is not None:
        files = local_weights.read(run, place, spec)
        local_weights.bring(run, staging, place, files, partial(weights_request, run, spec, staging))
    return staging.nodes


def _left(run: Transfers, spec: Spec, staging: Staging, nodes: Sequence[str]) -> Staging:
    """What is left to stage once ``nodes`` have what they got."""
    run.facts.update(run.collected(spec, nodes, staging.what))
    left = find_missing(run.facts, run.topology, spec, staging.what)
    check_disk_space(run.facts, left, spec)
    return left


def weights_request(run: Transfers, spec: Spec, staging: Staging, node: str) -> Request:
    """Request for ``node.listing`` and ``node.worker`` on ``node``: all get the revision of the first that has some.

    A node that lacks nothing keeps what else it has, and its ref.
    """
    model, lacks = spec.playbook.model, node in staging.nodes
    request: Request = {"what": "files", "verify": run.settings.verify, "choice": spec.playbook.choice}
    request |= {"root": model.path, "keep": not lacks}
    if model.id is not None:
        first, *_ = (*staging.sources, *staging.parts, *staging.nodes)
        weights = read(run.facts[first].weights)
        request["root"] = f"{run.facts[node].hf_home}/{hub_folder(model.id)}"
        request["ref"] = model.revision if lacks else None
        request["revision"] = (weights and weights.revision) or ""  # none is no revision, and refused
    return request
