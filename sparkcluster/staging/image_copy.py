"""Copies an image to all nodes that lack it, in one stream; where no source can send it, they pull it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sparkcluster.errors import ImageIncomplete, LayersAbsent, SparkclusterError, StageError, UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.docker import Image
from sparkcluster.facts.engine import is_known
from sparkcluster.facts.layers import left_out_bytes, shared
from sparkcluster.report import size
from sparkcluster.spec import Spec
from sparkcluster.staging.artifacts import image_request
from sparkcluster.staging.images import announced
from sparkcluster.staging.plan import Staging, digest_to_pull
from sparkcluster.staging.retries import combined
from sparkcluster.staging.transfers import Transfers


class ImageCopy:
    """The copy of the image of ``staging`` from the nodes that have it.

    Attributes:
        images: the image on each node that has it by now.
    """

    def __init__(self, run: Transfers, spec: Spec, staging: Staging) -> None:
        self.images = {node: image for node in staging.sources if isinstance(image := run.facts[node].image, Image)}
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
            errors = self._stream(sources[0], missing, whole=whole)
            missing = [node for node in missing if node in {error.node for error in errors}]
            absent = [error for error in errors if isinstance(error, LayersAbsent)]
            if any(isinstance(error, ImageIncomplete) or error.node == sources[0] for error in errors):
                for error in errors:
                    self._run.progress(str(error.node), error.message)
                failed += errors
                sources, whole = sources[1:], False
            elif absent and not whole:
                whole = True
                for error in absent:
                    whole_bytes = self.images[self._staging.sources[0]].size_bytes
                    text = f"{error.message}: copying the whole image, {size(whole_bytes)}"
                    self._run.progress(str(error.node), text)
            elif errors:
                raise combined(errors)
        # What is built is in no registry.
        may_pull = self._spec.build is None and any(isinstance(error, ImageIncomplete) for error in failed)
        if missing and not may_pull:
            raise combined(failed)
        self._run.at_once(lambda node: self._pull(node, [each for each in failed if each.node == node]), missing)

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

    def _stream(self, source: str, missing: Sequence[str], *, whole: bool) -> list[SparkclusterError]:
        """Copy the image from ``source`` through all of ``missing``, without the layers that all of them have.

        The errors, one for each node that it did not reach, and of the source.
        """
        facts, name, first = self._run.facts, self._staging.name, self._staging.sources[0]
        receivers = [] if whole else [facts[node] for node in missing]
        image, engine = self.images[first], read(facts[first].docker)
        config = None if engine is None or engine.containerd_store else image.id
        have = [None] * len(image.layers) if whole else shared(image, receivers)
        left_out = left_out_bytes(image, facts[first], receivers)
        for node in () if whole else missing:
            self._run.progress(node, announced(image, first, node, facts, missing))

        ids = {node: its.id for node, its in self.images.items()}
        sender = read(facts[source].docker)
        spool = 0 if sender is None or sender.containerd_store else image.size_bytes

        def request(node: str) -> dict[str, Any]:
            docker = read(facts[node].docker)
            return {
                **image_request(self._spec, image, ids.get(node, image.id), config, have=have, left_out=left_out),
                "root": " ".join((name, node, str(image.config_sum), *image.layers)),
                "images_dir": (docker.images_dir if docker is not None else "") or "/",
                "source": source,
                "spool": spool if node == source else None,
            }

        size = max(1, image.size_bytes - left_out)
        file = {"path": name, "size": size, "mtime": 0, "sha256": None, "links": []}
        try:
            self._run.move("image", request, [source, *missing], [file])
        except StageError as error:
            errors, error.others = [error, *error.others], ()
            return errors
        finally:
            for node in missing:
                self.images[node] = image.model_copy(update={"id": self._run.image_ids.get(node, image.id)})
        return []

    def _pull(self, node: str, incomplete: list[SparkclusterError]) -> None:
        """Pull on ``node`` what no source can send, as their errors ``incomplete`` say."""
        from sparkcluster.staging.downloads import Downloads  # noqa: PLC0415 - few runs need it

        run, staging, first = self._run, self._staging, self._staging.sources[0]
        begin, downloads = time.monotonic(), Downloads(run, self._spec, staging)
        try:
            moved = downloads.on(node, digest_to_pull(staging.name, self.images[first].digest))
        except StageError as error:
            raise combined([*incomplete, error]) from error
        run.record(staging.what, node, "download", moved, begin)
        pulled = run.collected(self._spec, [node], staging.what)
        image = pulled[node].image
        if not isinstance(image, Image) or image.build != self.images[first].build:
            raise combined(incomplete)
        self.images[node] = image
        run.progress(node, "image complete")
