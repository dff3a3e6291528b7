"""Stages weights and image on every node that lacks them: one download at most, then from node to node."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkcluster.errors import StageError
from sparkcluster.facts.base import read
from sparkcluster.facts.docker import Image
from sparkcluster.facts.layers import left_out_bytes
from sparkcluster.facts.model import Facts
from sparkcluster.report import Report
from sparkcluster.runtime import Changer
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import Companion
from sparkcluster.staging import copy_weights, ownership
from sparkcluster.staging.artifacts import Artifact, Request, artifacts, weights_request
from sparkcluster.staging.copy import HERE, RESUME, Progress
from sparkcluster.staging.copy_request import Settings
from sparkcluster.staging.image_copy import ImageCopy
from sparkcluster.staging.plan import Staging, check_disk_space, find_missing
from sparkcluster.staging.transfers import Copied, Transfers
from sparkcluster.topology.model import Topology

if TYPE_CHECKING:
    from sparkcluster.staging.expected import Expected
    from sparkcluster.staging.trust import Corrupt


@dataclasses.dataclass(frozen=True, slots=True)
class StageReport:
    """What was to be staged and, unless it was a dry run, what was copied.

    Attributes:
        commits: of the repositories beside the model, by ``REVISION of REPOSITORY``, as the head has them; in a dry
            run of those that no node lacks.
        verified: nodes of which every byte of a model was read, by the model.
        corrupt: copies that were found to be wrong, and were replaced.
        warnings: of copies that left the interconnect.
        expected: in a dry run, what would move, by the name of the artifact.
    """

    stagings: tuple[Staging, ...]
    copied: tuple[Copied, ...] = ()
    commits: Mapping[str, str] = dataclasses.field(default_factory=dict)
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


def stage(
    changer: Changer,
    facts: Mapping[str, Facts],
    topology: Topology,
    spec: Spec,
    *,
    what: Sequence[Artifact] = ("weights", "image"),
    dry_run: bool = False,
    expect: bool = True,
    verify: bool = False,
    progress: Progress = lambda _node, _text: None,
    report: Report | None = None,
    settings: Settings | None = None,
    given: Path | None = None,
) -> StageReport:
    """Stage what is missing on every node of ``topology``: image, weights, and the repositories beside them.

    A ``dry_run`` finds what is missing, and what would move where that is to be ``expect``ed: the hub is asked for it.
    ``verify`` reads every copy, also where nothing is missing, and replaces those that are wrong. ``report``
    gets notes, as of copies that leave the interconnect, and how far transfers are. ``given`` is where on this machine
    the one artifact of ``what`` is, for the case that no node has it.

    Raises:
        StageError: with node, cause and hint. What arrived stays, and the next run resumes there.
        RegistryAuth: the registry requires a login.
        LeaseLost: a node has a newer epoch.
    """
    shown, how = report or Report(), settings or Settings()
    transfers = Transfers(changer.fleet, dict(facts), topology, changer.lease, progress, shown, how)
    run = _Run(transfers, spec, verify, changer, given)
    stagings: list[Staging] = []
    commits: dict[str, str] = {}
    expected: dict[str, tuple[Expected, ...]] = {}
    for model in (spec.playbook.model, *(spec.playbook.companions if "weights" in what else ())):
        if isinstance(model, Companion):
            # Staged as the weights of a playbook that serves nothing else.
            run.spec = dataclasses.replace(spec, playbook=spec.playbook.model_copy(update={"model": model}))
            transfers.facts, what = transfers.collected(run.spec, list(facts), "weights"), ["weights"]
        for each in artifacts(run.spec, what):
            staging = run.sized(find_missing(transfers.facts, topology, run.spec, each, given=given is not None))
            stagings.append(staging)
            check_disk_space(transfers.facts, staging, run.spec)
            if dry_run:
                if expect and staging.missing and (found := run.expect(staging)):
                    expected[staging.name] = found
                continue
            if staging.missing:
                shown.step("copy", f"{staging.what} {staging.name}")
            run.bring(staging)
        if isinstance(model, Companion) and not (dry_run and stagings[-1].missing):
            head = topology.groups[0].head.name
            now = transfers.collected(run.spec, [head], "weights") if stagings[-1].missing else transfers.facts
            if (weights := read(now[head].weights)) is not None and weights.revision:
                commits[f"{model.revision} of {model.id}"] = weights.revision
    moved, loud = tuple(transfers.copied), tuple(transfers.loud)
    return StageReport(tuple(stagings), moved, commits, run.verified, tuple(run.corrupt), loud, expected)


@dataclasses.dataclass
class _Run:
    """The steps for one artifact after another; ``spec`` is that of the artifact."""

    transfers: Transfers
    spec: Spec
    verify: bool
    changer: Changer
    given: Path | None
    images: dict[str, Image] = dataclasses.field(default_factory=dict)
    verified: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    corrupt: list[Corrupt] = dataclasses.field(default_factory=list)

    @property
    def facts(self) -> dict[str, Facts]:
        """The facts of the nodes, as far as they were collected again."""
        return self.transfers.facts

    def sized(self, staging: Staging) -> Staging:
        """The same with the size of what is given on this machine, where no node has it, and this machine has.

        Raises:
            StageError: what is given cannot be used.
        """
        if self.given is None or staging.sources:
            return staging
        from sparkcluster.staging import local_image, local_weights  # noqa: PLC0415 - rarely needed

        if staging.what == "image":
            return dataclasses.replace(staging, size_bytes=local_image.read(self.given, staging.name).size_bytes)
        place = local_weights.locate(self.given, self.spec)
        found = None if place is None else local_weights.size_bytes(self.transfers, place, self.spec)
        return dataclasses.replace(staging, size_bytes=found)

    def expect(self, staging: Staging) -> tuple[Expected, ...]:
        """What would move to the nodes that lack it."""
        from sparkcluster.fit.known import size_of  # noqa: PLC0415 - few runs need it
        from sparkcluster.staging.expected import BUILD, moves, publisher  # noqa: PLC0415 - likewise

        total, present = staging.size_bytes, dict.fromkeys(staging.nodes, 0)
        outside = HERE if total is not None else BUILD if staging.built else publisher(staging)
        if staging.what == "weights":
            total = size_of(self.spec.playbook.model) if total is None else total
            present = {node: weights.size_bytes for node in present if (weights := read(self.facts[node].weights))}
        elif staging.sources and isinstance(image := self.facts[staging.sources[0]].image, Image):
            receivers = [self.facts[node] for node in present]
            present = dict.fromkeys(present, left_out_bytes(image, self.facts[staging.sources[0]], receivers))
        sizes = {node: None if total is None else max(0, total - present.get(node, 0)) for node in staging.nodes}
        transfers = self.transfers
        return moves(staging, self.facts, transfers.topology, transfers.settings, sizes=sizes, outside=outside)

    def bring(self, staging: Staging) -> None:
        """Download it where no node has it, then copy it to the others."""
        for node, lacks in staging.missing:
            self.transfers.progress(node, f"{staging.what} {lacks}")
        if staging.what == "weights" and self.spec.playbook.model.id is not None:
            lacking = {node: self.facts[node] for node in staging.nodes}
            ownership.take(self.changer, self.spec.playbook.model.id, lacking, self.images, self.transfers.progress)
        if not staging.sources and len(staging.parts) > 1:
            staging = self._unite(staging)
        if staging.missing and not staging.sources:
            staging = self._given(staging) or self._download(staging)
        if staging.what == "image":
            copy = ImageCopy(self.transfers, self.spec, staging)
            copy.run()
            self.images = copy.images
        elif staging.missing or self.verify:
            request = partial(self._request, staging)
            read_on, corrupt = copy_weights.copy(self.transfers, staging, request, verify=self.verify)
            self.verified |= {staging.name: read_on} if self.verify else {}
            self.corrupt += corrupt

    def _unite(self, staging: Staging) -> Staging:
        """What is left to stage once nodes have what others of them had."""
        request = partial(self._request, dataclasses.replace(staging, sources=staging.parts))
        return self._left(staging, copy_weights.unite(self.transfers, staging, request))

    def _given(self, staging: Staging) -> Staging | None:
        """What is left to stage once nodes have what is on this machine; None if none of it is."""
        if self.given is None:
            return None
        from sparkcluster.staging import local_image, local_weights  # noqa: PLC0415 - rarely needed

        transfers = self.transfers
        if staging.what == "image":
            archive = local_image.read(self.given, staging.name)
            node = local_image.bring(transfers, staging, archive)
            return self._left(staging, [node], f"{self.given} was loaded")
        place = local_weights.locate(self.given, self.spec)
        if place is None:
            return None
        request = partial(self._request, dataclasses.replace(staging, sources=staging.nodes))
        local_weights.bring(transfers, self.spec, staging, place, request)
        return self._left(staging, staging.nodes, f"{self.given} has not all of it")

    def _download(self, staging: Staging) -> Staging:
        """What is left to stage once a node has downloaded it, or this machine has, where no node reaches the hub.

        An image of the playbook's own is built instead.
        """
        from sparkcluster.staging import outside  # noqa: PLC0415 - few runs need it

        if staging.what == "image" and self.spec.build is not None:
            builder = outside.build(self.transfers, self.spec, self.spec.build, staging)
            return self._left(staging, [builder], "the build left it out")
        found = outside.Download(self.transfers, self.spec, staging).anywhere()
        if isinstance(found, Path):
            self.given = found
            return self._given(staging) or self._left(staging, staging.nodes, f"{found} has not all of it")
        return self._left(staging, [found], "the download left it out")

    def _left(self, staging: Staging, nodes: Sequence[str], otherwise: str = "") -> Staging:
        """What is left to stage once ``nodes`` have what they got.

        Raises:
            StageError: none of them has it whole, with ``otherwise`` as the reason, if that is given.
        """
        self.facts.update(self.transfers.collected(self.spec, nodes, staging.what))
        left = find_missing(self.facts, self.transfers.topology, self.spec, staging.what, given=bool(otherwise))
        if otherwise and not left.sources:
            raise StageError(
                f"{staging.what} {staging.name}: incomplete on {nodes[0]}: {dict(left.missing)[nodes[0]]}; {otherwise}",
                node=nodes[0],
                step=f"copy {staging.what}",
                hint=RESUME,
            )
        check_disk_space(self.facts, left, self.spec)
        return left

    def _request(self, staging: Staging, node: str) -> Request:
        request = weights_request(self.spec, self.facts, staging.sources[0], node, verify=self.verify)
        if node not in staging.nodes:
            request.pop("ref", None)  # it has its own, and what else it has stays
            request["keep"] = True
        return request
