"""Copies an image to all nodes that lack it; if no source can save it, they pull it.

One node saves it as files, which are copied like others; then all nodes load it (``node.image_files``).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkcluster.errors import ImageIncomplete, LayersAbsent, SparkclusterError, StageError, UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.docker import Image
from sparkcluster.facts.engine import is_known
from sparkcluster.facts.layers import shared
from sparkcluster.hosts.fleet import combined
from sparkcluster.hosts.program import stream
from sparkcluster.node.shared import BLOBS
from sparkcluster.report import share, size
from sparkcluster.spec import Spec
from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.copy import Done, Failure, follow, list_files, stage_error, stage_errors
from sparkcluster.staging.job import Arrived
from sparkcluster.staging.plan import Staging, digest_to_pull
from sparkcluster.staging.transfers import Transfers

_UNKNOWN = {"version": "", "containerd_store": False}


class ImageCopy:
    """The copy of the image of ``staging`` from the nodes that have it.

    Attributes:
        images: the image on each node that already has it.
    """

    def __init__(self, run: Transfers, spec: Spec, staging: Staging) -> None:
        self.images = {node: image for node in staging.sources if isinstance(image := run.facts[node].image, Image)}
        self._image = next(iter(self.images.values()))  # the image that all nodes get
        self._run, self._spec, self._staging = run, spec, staging

    @property
    def _missing(self) -> list[str]:
        return [node for node in self._staging.nodes if node not in self.images]

    def run(self) -> None:
        """Copy to all nodes at the same time; try the next source if one fails or lacks layers; as a last resort, pull.

        Raises:
            UsageError: the image is unknown, and the operator did not confirm.
        """
        if not self._missing:
            return
        self._ask()
        failed: list[SparkclusterError] = []
        for source in self._staging.sources:
            errors = self._copy(source)
            if absent := [error for error in errors if isinstance(error, LayersAbsent)]:
                for error in absent:
                    text = f"{error.message}: copying the complete image, {size(self._image.size_bytes)}"
                    self._run.progress(str(error.node), text)
                errors = self._copy(source, whole=True)
            if errors and not any(isinstance(error, ImageIncomplete) or error.node == source for error in errors):
                raise combined(errors)
            for each in errors:
                self._run.progress(str(each.node), each.message)
            if not self._missing:
                return
            failed += errors
        # An image that is built is in no registry.
        if self._spec.build is not None or not any(isinstance(error, ImageIncomplete) for error in failed):
            raise combined(failed)
        if errors := _errors(lambda: self._run.at_once(self._pull, self._missing)):
            raise combined([*failed, *errors])

    def _ask(self) -> None:
        """Ask before nodes get an image that differs from the staged one, or from their own if none was staged.

        Without other images on the nodes, the head's image is copied without asking: users build and pull there.
        """
        name, nodes, facts = self._staging.name, self._staging.nodes, self._run.facts
        others = {node: image for node in nodes if isinstance(image := facts[node].image, Image)}
        first, recorded = next(iter(self.images)), self._spec.image_build
        head = self._run.topology.by_rank[0]
        if is_known(self.images[first], self._spec) if recorded else first == head and not others:
            return
        ids = ", ".join(f"{node} has {image.id[:19]}" for node, image in {**self.images, **others}.items())
        why = "differs between nodes" if others else f"is not on {head}, the head"
        why = "is a different image than the one staged before" if recorded else why
        if self._run.settings.yes:
            self._run.shown.note(f"{name} {why}: {ids}; copying the image of {first}")
        elif not self._run.shown.confirm(f"{name} {why}: {ids}\ncopy the image of {first} to {', '.join(nodes)}?"):
            hint = f"to copy the image of {first}, add --yes, or answer y in a terminal"
            raise UsageError(f"{name} {why}: {ids}", step="copy image", hint=hint)

    def _copy(self, source: str, *, whole: bool = False) -> list[SparkclusterError]:
        """Copy the image from ``source`` to all nodes that lack it, without the layers that all of them have.

        Returns the errors: of the source, and of each node that did not get it.
        """
        run, missing, begin, arrived = self._run, self._missing, time.monotonic(), dict[str, Arrived]()
        have = {} if whole else shared(self._image, [run.facts[node] for node in missing])

        def request(node: str) -> Request:
            return image_request(run, node, self._staging.name, self.images.get(node, self._image), have)

        try:
            files = self._save(source, request(source))
        except StageError as error:
            return [error]
        for node in () if whole else missing:
            run.progress(node, _announced(self._image, sum(file["size"] for file in files), have, missing))
        blobs, nodes, keep = [file["sha256"] for file in files], [source, *missing], arrived.__setitem__

        def load_it(node: str) -> None:
            done = ask(run, node, "load", request(node), blobs, source=source)
            self.images[node] = self._image.model_copy(update={"id": str(done.image_id)})
            if node in arrived:
                run.record_copy("image", node, dataclasses.replace(arrived[node], seconds=time.monotonic() - begin))
            else:  # its files arrived in an earlier run
                run.record("image", node, source, 0, begin)
            run.progress(node, "image complete")

        # If this fails, so does the copy below.
        _errors(lambda: run.at_once(lambda node: ask(run, node, "clear", request(node), blobs), missing))
        errors = _errors(lambda: run.move("image", request, nodes, files, arrived=keep))
        failed = {error.node for error in errors}
        errors += _errors(lambda: run.at_once(load_it, [node for node in missing if node not in failed]))
        return errors or _errors(lambda: ask(run, source, "clear", request(source), []))

    def _save(self, source: str, request: Request) -> Sequence[dict[str, Any]]:
        """The files that ``source`` saved of its image."""
        step, report = self._run.step("image"), self._run.report("image", source, "saved")
        request = {**request, "do": "save"}
        files = list_files(step, self._run.fleet[source], request, report, program="image_files").files
        if any(file["path"] != f"{BLOBS}{file['sha256']}" for file in files):
            raise stage_error(step, Failure(source, "archive", "the image's files are not named by their SHA-256"))
        return files

    def _pull(self, node: str) -> None:
        """Pull the image on ``node`` if no source can save it."""
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
    """The errors of ``action``, one for each node."""
    try:
        action()
    except StageError as error:
        if error.node is None:
            raise
        errors, error.others = [error, *error.others], ()
        return errors
    return []


def image_request(run: Transfers, node: str, reference: str, image: Image, have: Mapping[str, str]) -> Request:
    """The request to ``node.image_files`` on ``node``, without its action.

    ``image`` is the image that the node has or gets, named ``reference``; ``have`` is the result of ``shared``.
    """
    facts = run.facts[node]
    docker = read(facts.docker)
    return {
        "root": f"{facts.state_dir}/clusters/{run.lease(node)['cluster']}/images",
        "engine": docker.model_dump(include={"version", "containerd_store"}) if docker is not None else _UNKNOWN,
        "image": image.model_dump(include={"id", "layers", "config_sum", "size_bytes"}),
        "reference": reference,
        "have": have,
    }


def ask(run: Transfers, node: str, do: str, request: Request, blobs: Sequence[str], *, source: str = "") -> Done:
    """Run ``node.image_files`` on ``node`` with ``blobs`` (SHA-256) from ``source``, and return the result.

    Raises:
        StageError: Docker cannot load the image, or loaded another; LayersAbsent if it may work with all layers.
        LeaseLost: another operator has the lease.
    """
    step = run.step("image")
    asked = {**request, "do": do, "blobs": blobs, **step.lease(node)}
    with stage_errors(step, node), stream(run.fleet[node], "image_files", asked) as running:
        done = follow(step, node, running, run.report("image", node, "loaded"))
    if isinstance(done, Failure):
        raise stage_error(step, done, source=source)
    return done


def _announced(image: Image, going: int, have: Mapping[str, str], receivers: Sequence[str]) -> str:
    """Message: which part of ``image`` the ``going`` bytes are, or why all ``receivers`` get the complete image."""
    if have and going < image.size_bytes:
        return f"gets {share(going, image.size_bytes)} of the image: it has {len(have)} of {len(image.layers)} layers"
    return f"the complete image, {size(going)}: no layers found on {' and '.join(receivers)}"
