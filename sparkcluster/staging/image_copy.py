"""Copies an image to all nodes that lack it; where no source can save it, they pull it.

One node saves it as files (``node.image_save``), which are copied as any, and then all load it (``node.image_load``).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sparkcluster.errors import ImageIncomplete, LayersAbsent, SparkclusterError, StageError, UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.docker import Image
from sparkcluster.facts.engine import is_known
from sparkcluster.facts.layers import shared
from sparkcluster.facts.model import Facts
from sparkcluster.hosts.program import stream
from sparkcluster.node.shared import BLOBS
from sparkcluster.report import share, size
from sparkcluster.spec import Spec
from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.copy import Done, Failure, follow, list_files, stage_error, stage_errors
from sparkcluster.staging.job import Arrived
from sparkcluster.staging.plan import Staging, digest_to_pull
from sparkcluster.staging.retries import combined
from sparkcluster.staging.transfers import Transfers

_MOST_BLOBS = 2_000
_UNKNOWN = {"version": "", "containerd_store": False}


class ImageCopy:
    """The copy of the image of ``staging`` from the nodes that have it.

    Attributes:
        images: the image on each node that has it by now.
    """

    def __init__(self, run: Transfers, spec: Spec, staging: Staging) -> None:
        self.images = {node: image for node in staging.sources if isinstance(image := run.facts[node].image, Image)}
        self._image = next(iter(self.images.values()))  # what all are to get
        self._run, self._spec, self._staging = run, spec, staging

    def run(self) -> None:
        """Copy it to all at once; from another node where one fails or has it without its layers, else all pull it.

        Raises:
            UsageError: it is not known, and nobody says yes to it.
        """
        self._ask()
        sources, missing, whole = list(self._staging.sources), [node for node, _ in self._staging.missing], False
        failed: list[SparkclusterError] = []
        while missing and sources:
            errors = self._copy(sources[0], missing, whole=whole)
            missing = [node for node in missing if node not in self.images]
            absent = [error for error in errors if isinstance(error, LayersAbsent)]
            if any(isinstance(error, ImageIncomplete) or error.node == sources[0] for error in errors):
                for error in errors:
                    self._run.progress(str(error.node), error.message)
                failed += errors
                sources, whole = sources[1:], False
            elif absent and not whole:
                whole = True
                for error in absent:
                    text = f"{error.message}: copying the whole image, {size(self._image.size_bytes)}"
                    self._run.progress(str(error.node), text)
            elif errors:
                raise combined(errors)
        # What is built is in no registry.
        may_pull = self._spec.build is None and any(isinstance(error, ImageIncomplete) for error in failed)
        if missing and not may_pull:
            raise combined(failed)
        if errors := _errors(lambda: self._run.at_once(self._pull, missing)):
            raise combined([*failed, *errors])

    def _ask(self) -> None:
        """Ask before nodes get an image that is another than was staged, or than theirs where none was.

        Where neither was, that of the head is copied unasked: it is where people build and pull.
        """
        name, nodes, facts = self._staging.name, [node for node, _ in self._staging.missing], self._run.facts
        others = {node: image for node in nodes if isinstance(image := facts[node].image, Image)}
        first, recorded = next(iter(self.images), ""), self._spec.image_is
        head = self._run.topology.by_rank[0]
        if not nodes or (is_known(self.images[first], self._spec) if recorded else first == head and not others):
            return
        ids = ", ".join(f"{node} has {image.id[:19]}" for node, image in {**self.images, **others}.items())
        why = "was built or pulled apart" if others else f"is not on {head}, the head"
        why = "is another image than was staged before" if recorded else why
        if self._run.settings.yes:
            self._run.shown.note(f"{name} {why}: {ids}; copying that of {first}")
        elif not self._run.shown.confirm(f"{name} {why}: {ids}\ncopy that of {first} to {', '.join(nodes)}?"):
            hint = f"to copy that of {first}, add --yes, or answer y on a terminal"
            raise UsageError(f"{name} {why}: {ids}", step="copy image", hint=hint)

    def _copy(self, source: str, missing: Sequence[str], *, whole: bool) -> list[SparkclusterError]:
        """Copy the image from ``source`` to all of ``missing``, without the layers that all of them have.

        The errors: of the source, and of each node that it did not reach.
        """
        run, begin, arrived = self._run, time.monotonic(), dict[str, Arrived]()
        have = {} if whole else shared(self._image, [run.facts[node] for node in missing])
        request = partial(self._request, have=have)
        try:
            files = self._save(source, request(source))
            for node in () if whole else missing:
                run.progress(node, announced(self._image, files, node, run.facts, missing))
        except StageError as error:
            return [error]

        def load_it(node: str) -> None:
            image_id = load(run, node, {**request(node), "blobs": [file["sha256"] for file in files]}, source)
            self.images[node] = self._image.model_copy(update={"id": image_id})
            if node in arrived:
                run.record_copy("image", node, dataclasses.replace(arrived[node], seconds=time.monotonic() - begin))
            else:  # its files had arrived in an earlier run
                run.record("image", node, source, 0, begin)
            run.progress(node, "image complete")

        def move() -> None:
            def root(node: str) -> Request:
                return {"root": directory(run, node)}

            run.move("image", root, [source, *missing], files, arrived=arrived.__setitem__)

        errors = _errors(move)
        failed = {error.node for error in errors}
        errors += _errors(lambda: run.at_once(load_it, [node for node in missing if node not in failed]))
        if not errors:
            for left in _errors(lambda: _run(run, source, "image_save", {"directory": directory(run, source)})):
                run.progress(source, left.message)
        return errors

    def _save(self, source: str, request: Request) -> Sequence[dict[str, Any]]:
        """The files that ``source`` has made of its image."""
        step, report = self._run.step("image"), self._run.report("image", source, "saved")
        files = list_files(step, self._run.fleet[source], request, report, program="image_save").files
        if len(files) > _MOST_BLOBS or any(file["path"] != f"{BLOBS}{file['sha256']}" for file in files):
            raise stage_error(step, Failure(source, "archive", "the image's files are not named by their SHA-256"))
        return files

    def _request(self, node: str, have: dict[str, str]) -> Request:
        first = read(self._run.facts[self._staging.sources[0]].docker)
        known = first is not None and not first.containerd_store  # which calls an image by another hash
        return {
            **image_request(self._run, node, self._staging.name, self._image.layers, have),
            "image_id": self.images.get(node, self._image).id,
            "config": self._image.id if known else None,
            "config_sum": self._image.config_sum,
            "size": self._image.size_bytes,
        }

    def _pull(self, node: str) -> None:
        """Pull on ``node`` what no source can save."""
        from sparkcluster.staging.outside import Download  # noqa: PLC0415 - few runs need it

        run, staging, begin = self._run, self._staging, time.monotonic()
        moved = Download(run, self._spec, staging).on(node, digest_to_pull(staging.name, self._image.digest))
        run.record(staging.what, node, "download", moved, begin)
        image = run.collected(self._spec, [node], staging.what)[node].image
        if not isinstance(image, Image) or image.build != self._image.build:
            raise StageError(f"copy image on {node}: another image was pulled", node=node, step="copy image")
        self.images[node] = image
        run.progress(node, "image complete")


def _errors(action: Callable[[], object]) -> list[SparkclusterError]:
    """Why ``action`` failed, on each node."""
    try:
        action()
    except StageError as error:
        if error.node is None:
            raise
        errors, error.others = [error, *error.others], ()
        return errors
    return []


def directory(run: Transfers, node: str) -> str:
    """Where the files of an image are on ``node`` until it is loaded."""
    return f"{run.facts[node].state_dir}/clusters/{run.lease(node)['cluster']}/images"


def image_request(run: Transfers, node: str, reference: str, layers: Sequence[str], have: Mapping[str, str]) -> Request:
    """What ``node.image_save`` and ``node.image_load`` are asked on ``node``; not all of it.

    ``layers`` are those of the image that gets the name ``reference``, and ``have`` what ``shared`` found.
    """
    docker = read(run.facts[node].docker)
    engine = docker.model_dump(include={"version", "containerd_store"}) if docker is not None else _UNKNOWN
    image = {"reference": reference, "layers": list(layers), "have": have}
    return {"directory": directory(run, node), "engine": engine, **image}


def load(run: Transfers, node: str, request: Request, source: str) -> str:
    """The ID of the image on ``node``, once that has loaded the files that came from ``source``.

    Raises:
        StageError: it is another image, or Docker does not load it; LayersAbsent where it may if all layers come.
        LeaseLost: another operator has the lease.
    """
    return str(_run(run, node, "image_load", request, source).image_id)


def _run(run: Transfers, node: str, program: str, request: Request, source: str = "") -> Done:
    step = run.step("image")
    with stage_errors(step, node), stream(run.fleet[node], program, {**request, **step.lease(node)}) as running:
        done = follow(step, node, running, run.report("image", node, "loaded"))
    if isinstance(done, Failure):
        raise stage_error(step, done, source=source)
    return done


def announced(
    image: Image, files: Sequence[dict[str, Any]], node: str, facts: Mapping[str, Facts], receivers: Sequence[str]
) -> str:
    """Which part of ``image`` are the ``files`` that go to all ``receivers``, and why it is the whole for ``node``."""
    going, there, docker = sum(file["size"] for file in files), shared(image, [facts[node]]), read(facts[node].docker)
    if there and going < image.size_bytes:
        has = f"it has {len(there)} of {len(image.layers)} layers"
        return f"gets {share(going, image.size_bytes)} of the image: {has}"
    why = f"{', '.join(receivers)} do not have its layers in the same files" if there else "it has none of its layers"
    if not there and docker is not None and docker.containerd_store:
        why = f"containerd's image store on {node} does not say which layers it has"
    return f"the whole image, {size(going)}: {why}"
