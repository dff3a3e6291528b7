"""Stages weights and image on all nodes that lack them: at most one download, then from node to node.

Companions (drafters, adapters and separate tokenizers, ``Playbook.companions``) are staged as the weights of a playbook
that has only them. Ray is staged separately (``staging.ray``).
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
from sparkcluster.staging import copy_weights, ownership, small_files
from sparkcluster.staging.artifacts import Artifact, Request
from sparkcluster.staging.copy import RESUME
from sparkcluster.staging.image_copy import ImageCopy
from sparkcluster.staging.plan import Staging, check_disk_space, find_missing, no_weights
from sparkcluster.staging.transfers import Copied, Transfers

if TYPE_CHECKING:
    from sparkcluster.staging.expected import Expected
    from sparkcluster.staging.trust import Corrupt


@dataclasses.dataclass(frozen=True, slots=True)
class StageReport:
    """The artifacts to stage and, unless it was a dry run, what was copied.

    Attributes:
        verified: by model, the nodes on which every byte of it was read.
        corrupt: corrupt copies that were replaced.
        warnings: about copies that left the interconnect.
        expected: in a dry run, the expected copies by name of the artifact.
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


def find(run: Transfers, spec: Spec, what: Sequence[Artifact], given: Path | None = None) -> list[Staging]:
    """Find what nodes lack of the artifacts ``what``: image, and weights with their companions and small files.

    ``given`` is the local copy of the only artifact in ``what``, to use if no node has it.

    Raises:
        StageError: the artifact is not available, the local copy cannot be used, or a disk is too small.
    """
    found = []
    if "image" in what and spec.inventory.runtime.kind == "docker" and spec.image:
        found.append(_find(run, spec, "image", given))  # first: it may contain the downloader for the weights
    if "weights" in what:
        for model in (spec.playbook.model, *spec.playbook.companions):
            playbook = spec.playbook.model_copy(update={"model": model})
            found.append(_find(run, dataclasses.replace(spec, playbook=playbook), "weights", given))
        found += small_files.find_missing(spec, run.facts)
    return found


def _find(run: Transfers, spec: Spec, what: Artifact, given: Path | None) -> Staging:
    facts = _facts(run.facts, spec)
    staging = find_missing(facts, run.topology, spec, what)
    size_bytes = staging.size_bytes
    if given is not None and not staging.sources:
        from sparkcluster.staging import local_image, local_weights  # noqa: PLC0415 - rarely needed

        if what == "image":
            size_bytes = local_image.read(given, staging.name).image.size_bytes
        elif (place := local_weights.locate(given, spec)) is not None:
            size_bytes = local_weights.size_bytes(run, place, spec)
        else:
            given = None
    staging = dataclasses.replace(staging, size_bytes=size_bytes, given=given)
    if not (given or staging.sources or staging.download or len(staging.parts) > 1):
        raise no_weights(facts, staging.nodes[0], spec)
    check_disk_space(facts, staging)
    return staging


def _facts(facts: dict[str, Facts], spec: Spec) -> dict[str, Facts]:
    """``facts`` with the weights of the model of ``spec``, which may be a companion of the playbook's model."""
    model = spec.playbook.model
    if not isinstance(model, Companion):
        return facts
    found = {}
    for node, its in facts.items():
        weights = its.companions if isinstance(its.companions, Unread) else its.companions.get(str(model.id))
        found[node] = its.model_copy(update={"weights": weights})
    return found


def bring(run: Transfers, changer: Changer, stagings: Sequence[Staging]) -> StageReport:
    """Download to one node what no node has, then copy everything to the nodes that lack it.

    Raises:
        StageError: with node, cause and hint. Files that arrived are kept; the next run resumes there.
        RegistryAuth: the registry requires a login.
        LeaseLost: a node has a newer epoch.
    """
    facts = run.facts
    verified: dict[str, tuple[str, ...]] = {}
    corrupt: list[Corrupt] = []
    for staging in stagings:
        if staging.files is not None:
            for node in staging.nodes:
                sent = staging.files(facts[node].state_dir)
                run.send(staging.what, node, sent, staging.size_bytes, name=staging.name)
            continue
        run.facts = _facts(facts, staging.spec)
        if staging.missing:
            run.shown.step("copy", f"{staging.what} {staging.name}")
        for node, lacks in staging.missing:
            run.progress(node, f"{staging.what} {lacks}")
        if staging.what == "image":
            copy = ImageCopy(run, staging.spec, _source(run, staging))
            copy.run()
            facts |= {node: facts[node].model_copy(update={"image": image}) for node, image in copy.images.items()}
        elif staging.missing or run.settings.verify:
            read_on, wrong = _weights(run, changer, staging)
            corrupt += wrong
            if run.settings.verify:
                verified[staging.name] = read_on
    return StageReport(tuple(stagings), tuple(run.copied), verified, tuple(corrupt), tuple(run.warnings))


def _weights(run: Transfers, changer: Changer, staging: Staging) -> tuple[tuple[str, ...], list[Corrupt]]:
    """Returns as ``copy_weights.copy``."""
    lacking, repository = {node: run.facts[node] for node in staging.nodes}, staging.spec.playbook.model.id
    if repository is not None:
        ownership.take(changer, repository, lacking, run.progress)
    staging = _source(run, staging)
    if not staging.missing and not run.settings.verify:
        return (), []
    return copy_weights.copy(run, staging, partial(weights_request, run, staging), verify=run.settings.verify)


def _source(run: Transfers, staging: Staging) -> Staging:
    """Make sure that a node has the complete artifact; return what is left to copy.

    Raises:
        StageError: the node did not get all of it.
    """
    if not staging.sources and len(staging.parts) > 1:
        nodes = copy_weights.unite(run, staging, partial(weights_request, run, staging))
        staging = _left(run, staging, nodes)
    if not staging.sources:
        (node, *others), origin = _fetch(run, staging)
        staging = _left(run, staging, [node, *others])
        if not staging.sources:
            why = f"{staging.what} {staging.name} is incomplete on {node}: {dict(staging.missing)[node]}; {origin}"
            hint = "pass a complete copy to --from" if staging.given else RESUME
            raise StageError(why, node=node, step=f"copy {staging.what}", hint=hint)
    return staging


def _fetch(run: Transfers, staging: Staging) -> tuple[Sequence[str], str]:
    """Send the local copy, or build or download the artifact; return the nodes that got it, and an origin for messages.

    If no node reaches the hub, this machine downloads.
    """
    from sparkcluster.staging import local_image, local_weights, outside  # noqa: PLC0415 - rarely needed

    spec = staging.spec
    if staging.given is None and staging.what == "image" and spec.build is not None:
        return [outside.build(run, spec, spec.build, staging)], "the build did not create it"
    found = staging.given or outside.Download(run, spec, staging).anywhere()
    if isinstance(found, str):
        return [found], "the download did not include it"
    if staging.what == "image":
        return [local_image.bring(run, staging, local_image.read(found, staging.name))], f"{found} was loaded"
    place = local_weights.locate(found, spec)
    if place is not None:
        local_weights.bring(run, spec, staging, place, partial(weights_request, run, staging))
    return staging.nodes, f"{found} is incomplete"


def _left(run: Transfers, staging: Staging, nodes: Sequence[str]) -> Staging:
    """What is left to stage after ``nodes`` got files."""
    run.facts.update(run.collected(staging.spec, nodes, staging.what))
    left = find_missing(run.facts, run.topology, staging.spec, staging.what)
    check_disk_space(run.facts, left)
    return dataclasses.replace(left, given=staging.given)


def weights_request(run: Transfers, staging: Staging, node: str) -> Request:
    """Request for ``node.listing`` and ``node.worker`` on ``node``: the revision is the first source's.

    A node that lacks nothing keeps its other files and its ref.
    """
    playbook, lacks = staging.spec.playbook, node in staging.nodes
    request: Request = {"verify": run.settings.verify, "choice": playbook.choice, "keep": not lacks}
    if playbook.model.id is None:
        return {**request, "root": playbook.model.path}
    first, *_ = (*staging.sources, *staging.parts, *staging.nodes)
    weights = read(run.facts[first].weights)
    return {
        **request,
        "root": f"{run.facts[node].hf_home}/{hub_folder(playbook.model.id)}",
        "ref": playbook.model.revision if lacks else None,
        "revision": (weights and weights.revision) or "",  # an empty revision is refused
    }
