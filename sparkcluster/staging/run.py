"""Stages weights and image on every node that lacks them: one download at most, then from node to node."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkcluster.errors import ImageIncomplete, LayersAbsent, RegistryAuth, SparkclusterError, StageError
from sparkcluster.facts.base import read
from sparkcluster.facts.docker import Image
from sparkcluster.facts.engine import builds
from sparkcluster.facts.layers import left_out_bytes, shared
from sparkcluster.facts.model import Facts
from sparkcluster.node.shared import registry_of
from sparkcluster.probing.collect import collect_facts
from sparkcluster.report import Report
from sparkcluster.runtime import Changer
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import Companion
from sparkcluster.staging import ownership
from sparkcluster.staging.again import RESUME, is_silence, until_answered
from sparkcluster.staging.artifacts import Artifact, artifacts, download_request, hub, image_request, weights_request
from sparkcluster.staging.begin import Settings
from sparkcluster.staging.chain import probable
from sparkcluster.staging.copy import (
    Done,
    Failure,
    Progress,
    Pulling,
    stage_error,
)
from sparkcluster.staging.images import announced
from sparkcluster.staging.manifest import BadAnswer, ListedFile, Manifest
from sparkcluster.staging.notes import Expected, forecast
from sparkcluster.staging.plan import Staging, check_disk_space, digest_to_pull, find_missing, no_weights
from sparkcluster.staging.pull import fetch, pull, text
from sparkcluster.staging.retries import DOWNLOAD_NODES, combined
from sparkcluster.staging.transfers import Copied, Transfers
from sparkcluster.topology.model import Topology

if TYPE_CHECKING:
    from sparkcluster.staging.trust import Corrupt, Wanted


@dataclasses.dataclass(frozen=True, slots=True)
class StageReport:
    """What was to be staged and, unless it was a dry run, what was copied.

    Attributes:
        commits: of the repositories beside the model, by ``REVISION of REPOSITORY``, as the head has them; in a dry
            run of those that no node lacks.
        verified: nodes of which every byte of a model was read, by the model.
        corrupt: copies that were found to be wrong, and were replaced.
        warnings: of copies that left the interconnect.
        expected: in a dry run, what would move of weights, by their name.
    """

    stagings: tuple[Staging, ...]
    copied: tuple[Copied, ...] = ()
    commits: Mapping[str, str] = dataclasses.field(default_factory=dict)
    verified: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    corrupt: tuple[Corrupt, ...] = ()
    warnings: tuple[str, ...] = ()
    expected: Mapping[str, tuple[Expected, ...]] = dataclasses.field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Whether any node was changed."""
        return bool(self.copied)

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
    verify: bool = False,
    progress: Progress = lambda _node, _text: None,
    report: Report | None = None,
    settings: Settings | None = None,
    given: Path | None = None,
) -> StageReport:
    """Stage what is missing on every node of ``topology``: image, weights, and the repositories beside them.

    ``verify`` reads every copy, also where nothing is missing, and replaces those that are wrong. ``report``
    gets notes, as of copies that leave the interconnect, and how far transfers are. ``given`` is where on this machine
    the one artifact of ``what`` is, for the case that no node has it.

    Raises:
        StageError: with node, cause and hint. What arrived stays, and the next run resumes there.
        RegistryAuth: the registry requires a login.
        LeaseLost: a node has a newer epoch.
    """
    fleet = changer.fleet
    run = _Run(
        fleet,
        dict(facts),
        topology,
        changer.lease,
        progress,
        changer.hold,
        changer.patience_s,
        report or Report(),
        settings or Settings(),
        spec=spec,
        verify=verify,
        changer=changer,
        given=given,
    )
    head = topology.groups[0].head.name
    stagings: list[Staging] = []
    commits: dict[str, str] = {}
    expected: dict[str, tuple[Expected, ...]] = {}
    for model in (spec.playbook.model, *(spec.playbook.companions if "weights" in what else ())):
        if isinstance(model, Companion):
            # Staged as the weights of a playbook that serves nothing else.
            run.spec = dataclasses.replace(spec, playbook=spec.playbook.model_copy(update={"model": model}))
            run.facts, what = run.collected(list(facts), "weights"), ["weights"]
        for each in artifacts(run.spec, what):
            staging = find_missing(run.facts, topology, run.spec, each, given=given is not None)
            stagings.append(staging)
            if not dry_run:
                run.bring(staging)
            else:
                check_disk_space(run.facts, staging, run.spec)
                run.given_to(staging, dry_run=True)
                if moves := run.expect(staging):
                    expected[staging.name] = moves
        if isinstance(model, Companion) and not (dry_run and stagings[-1].missing):
            now = run.collected([head], "weights") if stagings[-1].missing else run.facts
            if (weights := read(now[head].weights)) is not None and weights.revision:
                commits[f"{model.revision} of {model.id}"] = weights.revision
    return StageReport(
        tuple(stagings), tuple(run.copied), commits, run.verified, tuple(run.corrupt), tuple(run.loud), expected
    )


@dataclasses.dataclass
class _Run(Transfers):
    spec: Spec = dataclasses.field(kw_only=True)
    verify: bool = dataclasses.field(kw_only=True)
    changer: Changer = dataclasses.field(kw_only=True)
    given: Path | None = None
    no_hub: set[str] = dataclasses.field(default_factory=set)
    images: dict[str, Image] = dataclasses.field(default_factory=dict)
    verified: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    corrupt: list[Corrupt] = dataclasses.field(default_factory=list)

    def collected(self, nodes: Sequence[str], what: Artifact) -> dict[str, Facts]:
        """The facts of ``nodes``, once all of them have answered."""
        look = partial(collect_facts, self.fleet, self.spec, nodes)
        return until_answered(self.step(what), self.fleet, nodes, look, lambda found: found.errors).facts

    def expect(self, staging: Staging) -> tuple[Expected, ...]:
        """What would move of weights that a node has."""
        if staging.what != "weights" or not staging.sources or staging.size_bytes is None:
            return ()
        missing = {node: read(self.facts[node].weights) for node, _ in staging.missing}
        lacks = {
            node: max(0, staging.size_bytes - (weights.size_bytes if weights else 0))
            for node, weights in missing.items()
        }
        nodes = [*staging.sources, *missing]
        found = probable(self.facts, self.topology, nodes)
        return forecast(found, nodes, lacks, staging.size_bytes, self.settings.rates, encrypt=self.settings.encrypt)

    def bring(self, staging: Staging) -> None:
        """Download it where no node has it, then copy it to the others."""
        for node, lacks in staging.missing:
            self.progress(node, f"{staging.what} {lacks}")
        check_disk_space(self.facts, staging, self.spec)
        if staging.what == "weights":
            nodes = {node: self.facts[node] for node, _ in staging.missing}
            ownership.take(self.changer, self.spec.playbook.model.id, nodes, self.images, self.progress)
        if not staging.sources and len(staging.parts) > 1:
            staging = self._unite(staging)
        if staging.missing and not staging.sources:
            staging = self.given_to(staging) or self._download(staging)
        sources, targets = list(staging.sources), [name for name, _ in staging.missing]
        if self.verify and staging.what == "weights":
            self._verify(staging)
            return
        if staging.what == "image":
            self.images = {name: image for name in sources if isinstance(image := self.facts[name].image, Image)}
            self._copy_image(staging, targets)
        elif targets:
            files = self.files(staging, sources[0], self._request(staging, sources[0])).files
            self.move(staging.what, partial(self._request, staging), [*sources, *targets], files)

    def _verify(self, staging: Staging) -> None:
        """Read every copy, then replace what is wrong or missing by what another node has right."""
        from sparkcluster.staging.trust import examine  # noqa: PLC0415 - few runs need it

        first = staging.sources[0]
        there = read(self.facts[first].weights)
        nodes = [*staging.sources]
        for node, _ in staging.missing:
            part = read(self.facts[node].weights)
            if part and there and part.path and part.files and part.revision == there.revision:
                nodes.append(node)  # it has some of them

        def look(node: str) -> Mapping[str, ListedFile]:
            return self.files(staging, node, self._request(staging, node), judged=False).listed

        found = examine(self.at_once(look, nodes), staging.sources, staging.name)
        places = {node: weights.path or "" for node in nodes if (weights := read(self.facts[node].weights))}
        if (error := found.error(places)) is not None:
            raise error
        for each in found.corrupt:
            self.progress(each.node, str(each))
        self.corrupt += found.corrupt
        self.verified[staging.name] = tuple(nodes)
        self._mend(staging, found.wanted, [*nodes, *(node for node, _ in staging.missing if node not in nodes)])

    def _mend(self, staging: Staging, wanted: Wanted, nodes: Sequence[str]) -> None:
        """Copy to each of ``nodes`` what it lacks of the files that are ``wanted``."""
        revision = self._request(staging, staging.sources[0]).get("revision")
        try:
            files = Manifest.of(wanted.files, revision).files
        except BadAnswer as error:
            raise stage_error(self.step(staging.what), Failure(staging.sources[0], "source", str(error))) from None
        numbers = {name: number for number, file in enumerate(files) for name in (file["path"], *file["links"])}
        prefix = f"snapshots/{revision}/" if revision else ""
        replace = {
            node: sorted({numbers[f"{prefix}{file.name}"] for file in lacked})
            for node in nodes
            if (lacked := wanted.lacked(node))
        }
        if replace:
            self.move(staging.what, partial(self._request, staging), nodes, files, replace)

    def _unite(self, staging: Staging) -> Staging:
        """What is left to stage once nodes have what others of them had."""
        from sparkcluster.staging.parts import unite  # noqa: PLC0415 - few runs need it

        everybody = [name for name, _ in staging.missing]
        nodes = unite(self, staging, partial(self._request, dataclasses.replace(staging, sources=staging.parts)))
        self.facts.update(self.collected([name for name in everybody if name in nodes], staging.what))
        fresh = find_missing(self.facts, self.topology, self.spec, staging.what)
        check_disk_space(self.facts, fresh, self.spec)
        return fresh

    def given_to(self, staging: Staging, *, dry_run: bool = False) -> Staging | None:
        """What is left to stage once nodes have what is on this machine; None if none of it is, or in a dry run."""
        if self.given is None or staging.sources:
            return None
        from sparkcluster.staging import given, given_image  # noqa: PLC0415 - few runs need them

        if staging.what == "image":
            archive = given_image.read(self.given, staging.name)
            if dry_run:
                return None
            check_disk_space(self.facts, dataclasses.replace(staging, size_bytes=2 * archive.size_bytes), self.spec)
            node = given_image.bring(self, staging, archive, self.spec.inventory.cluster)
            return self._fresh(staging, [node], f"{self.given} was loaded")
        place = given.locate(self.given, self.spec)
        if place is None or dry_run:
            return None
        found = given.read(place, self.spec, self.stopped.is_set, self.report(staging.what, given.HERE, "read"))
        check_disk_space(self.facts, dataclasses.replace(staging, size_bytes=found.size_bytes), self.spec)
        nodes = [name for name, _ in staging.missing]
        given.bring(self, staging, found, partial(self._request, dataclasses.replace(staging, sources=tuple(nodes))))
        return self._fresh(staging, nodes, f"{self.given} has not all of it")

    def _download(self, staging: Staging) -> Staging:
        if not staging.download:
            raise no_weights(self.facts, staging.missing[0][0], self.spec)
        errors: list[SparkclusterError] = []
        self.no_hub.clear()
        for node in staging.download[:DOWNLOAD_NODES]:
            begin = time.monotonic()
            try:
                moved = self._fetch(staging, node)
            except SparkclusterError as error:
                errors.append(error)
                if isinstance(error, RegistryAuth) or not isinstance(error, StageError):
                    break
                if is_silence(error.__cause__):
                    break  # that download continues by itself, and the uplink is slow
                self.progress(node, error.message)
                continue
            self.record(staging.what, node, "download", moved, begin)
            return self._fresh(staging, [node], "the download left it out")
        return self._download_here(staging, errors)

    def _download_here(self, staging: Staging, errors: list[SparkclusterError]) -> Staging:
        """Download it to this machine, where no node reaches the hub, as ``errors`` say, and send it."""
        if staging.what == "weights" and errors and len(self.no_hub) == len(errors) and not hub(None)["offline"]:
            from sparkcluster.staging import given  # noqa: PLC0415 - few runs need it

            self.given = None
            try:
                self.given = given.download(self, self.spec)
            except StageError as error:
                errors.append(error)
            if (fresh := self.given_to(staging)) is not None:
                return fresh
        raise combined(errors)

    def _fresh(self, staging: Staging, nodes: Sequence[str], otherwise: str) -> Staging:
        """What is left to stage once ``nodes`` have it; StageError with ``otherwise`` if they do not."""
        self.facts.update(self.collected(nodes, staging.what))
        fresh = find_missing(self.facts, self.topology, self.spec, staging.what, given=True)
        if not fresh.sources:
            lacks = dict(fresh.missing)[nodes[0]]
            raise StageError(
                f"{staging.what} {staging.name}: incomplete on {nodes[0]}: {lacks}; {otherwise}",
                node=nodes[0],
                step=f"stage {staging.what}",
                hint=RESUME,
            )
        check_disk_space(self.facts, fresh, self.spec)
        return fresh

    def _fetch(self, staging: Staging, node: str, digest: str | None = None) -> int:
        """Bytes that ``node`` downloaded; of an image by its ``digest``, if that is known."""
        from sparkcluster.staging.model_headers import is_gated  # noqa: PLC0415 - slow, and few need it

        step, what = self.step(staging.what), staging.what
        name, model = staging.name, self.spec.playbook.model

        def download(token: str | None) -> Done | Failure:
            request = download_request(self.spec, self.facts[node], what, token)
            if what == "image":
                if digest is not None and digest != name:
                    request |= {"reference": digest, "tag": name}
                return pull(step, self.fleet[node], request, partial(self._pulling, node))
            return fetch(step, self.fleet[node], request, self.report(what, node, "downloaded"))

        done, token = download(None), os.environ.get("HF_TOKEN")
        # Whether the model is gated is the hub's word: by the node's alone, any node could ask for the token.
        if isinstance(done, Failure) and done.kind == "hub auth" and token and is_gated(str(model.id), model.revision):
            self.progress(node, f"{name} is gated: downloading it with HF_TOKEN")
            done = download(token)
        if not isinstance(done, Failure):
            if done.left_out_bytes:
                self.progress(node, f"{name}: {done.left_out_bytes / 1e9:.2f} GB that are not served stay on the hub")
            if done.whole:
                self.progress(node, f"{name}: the hub did not list its files, so all were downloaded")
            return done.bytes
        raise self._no_download(staging, node, done)

    def _no_download(self, staging: Staging, node: str, done: Failure) -> SparkclusterError:
        """The error of a download that failed on ``node``."""
        step, name, model = self.step(staging.what), staging.name, self.spec.playbook.model
        if done.kind == "no hub":
            self.no_hub.add(node)
        if done.kind in {"no hub", "no downloader"}:
            return no_weights(self.facts, node, self.spec, why=done.text)
        registry = registry_of(name)
        causes = {
            "auth": (
                f"the registry of {name} requires a login on {node}",
                f"docker login{' ' + registry if registry else ''}   on {node}",
            ),
            "hub auth": (
                f"the hub denies {node} access to {model.id}",
                f"accept the terms on the page of {model.id}, then export HF_TOKEN=…, or hf auth login   on {node}",
            ),
            "registry": (
                f"no node has the image {name}, and {node} cannot pull it",
                f"docker pull {name}   on any node, or docker load -i FILE",
            ),
            "blobs": (
                f"Docker on {node} has another image with the same layers, compressed otherwise (containerd#8973)",
                f"docker image rm {name}, and the images that share its layers, then run this again   on {node}",
            ),
            "platform": (f"{name} has no build for {node}", "set image: in the playbook to one for linux/arm64"),
        }
        if done.kind not in causes:
            return stage_error(step, done)
        cause, hint = causes[done.kind]
        error = RegistryAuth if done.kind == "auth" else StageError
        return error(f"{cause}: {done.text}", node=node, step=step.name, hint=hint)

    def _pulling(self, node: str, found: Pulling) -> None:
        engine = read(self.facts[node].docker)
        self.progress(node, text(found, containerd=engine is not None and engine.containerd_store))

    def _request(self, staging: Staging, node: str) -> dict[str, Any]:
        request = weights_request(self.spec, self.facts, staging.sources[0], node, verify=self.verify)
        if all(node != name for name, _ in staging.missing):
            request.pop("ref", None)  # it has its own, and what else it has stays
            request["keep"] = True
        return request

    def _copy_image(self, staging: Staging, missing: list[str]) -> None:
        """Copy it to all at once; from another node where one fails or has it without its layers, else all pull it."""
        sources, whole = list(staging.sources), False
        failed: list[SparkclusterError] = []
        while missing and sources:
            errors = self._stream(staging, sources[0], missing, whole=whole)
            missing = [node for node in missing if node in {error.node for error in errors}]
            absent = [error for error in errors if isinstance(error, LayersAbsent)]
            if any(isinstance(error, ImageIncomplete) or error.node == sources[0] for error in errors):
                for error in errors:
                    self.progress(str(error.node), error.message)
                failed += errors
                sources, whole = sources[1:], False
            elif absent and not whole:
                whole = True
                for error in absent:
                    size = self.images[staging.sources[0]].size_bytes
                    self.progress(str(error.node), f"{error.message}: copying the whole image, {size / 1e9:.2f} GB")
            elif errors:
                raise combined(errors)
        if missing and not any(isinstance(error, ImageIncomplete) for error in failed):
            raise combined(failed)
        self.at_once(
            lambda node: self._pull_instead(staging, node, [each for each in failed if each.node == node]), missing
        )

    def _stream(self, staging: Staging, source: str, missing: Sequence[str], *, whole: bool) -> list[SparkclusterError]:
        """Copy the image from ``source`` through all of ``missing``, without the layers that all of them have.

        The errors, one for each node that it did not reach, and of the source.
        """
        first, receivers = staging.sources[0], [] if whole else [self.facts[node] for node in missing]
        image, engine = self.images[first], read(self.facts[first].docker)
        config = None if engine is None or engine.containerd_store else image.id
        have = [None] * len(image.layers) if whole else shared(image, receivers)
        left_out = left_out_bytes(image, self.facts[first], receivers)
        for node in () if whole else missing:
            self.progress(node, announced(image, first, node, self.facts, missing))

        ids = {node: its.id for node, its in self.images.items()}
        sender = read(self.facts[source].docker)
        spool = 0 if sender is None or sender.containerd_store else image.size_bytes

        def request(node: str) -> dict[str, Any]:
            docker = read(self.facts[node].docker)
            return {
                **image_request(self.spec, image, ids.get(node, image.id), config, have=have, left_out=left_out),
                "root": " ".join((staging.name, node, str(image.config_sum), *image.layers)),
                "images_dir": (docker.images_dir if docker is not None else "") or "/",
                "source": source,
                "spool": spool if node == source else None,
            }

        size = max(1, image.size_bytes - left_out)
        file = {"path": staging.name, "size": size, "mtime": 0, "sha256": None, "links": []}
        try:
            self.move("image", request, [source, *missing], [file])
        except StageError as error:
            errors, error.others = [error, *error.others], ()
            return errors
        finally:
            for node in missing:
                self.images[node] = image.model_copy(update={"id": self.image_ids.get(node, image.id)})
        return []

    def _pull_instead(self, staging: Staging, target: str, incomplete: list[SparkclusterError]) -> None:
        """Pull on ``target`` what no source can send, as their errors ``incomplete`` say."""
        begin, first = time.monotonic(), staging.sources[0]
        try:
            moved = self._fetch(staging, target, digest_to_pull(staging.name, self.images[first].digest))
        except StageError as error:
            raise combined([*incomplete, error]) from error
        self.record(staging.what, target, "download", moved, begin)
        pulled = self.collected([target], staging.what)
        found = builds({first: self.facts[first], **pulled})
        image = pulled[target].image
        if found.get(target) != found[first] or not isinstance(image, Image):
            raise combined(incomplete)
        self.images[target] = image
        self.progress(target, "image complete")
