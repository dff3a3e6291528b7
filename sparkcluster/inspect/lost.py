"""Which releases can be gone back to, and what of that is lost on which node. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from sparkcluster.facts.base import Fact, Few, Number, Time
from sparkcluster.facts.record import ImageId, Label
from sparkcluster.node.shared import of_newest_images
from sparkcluster.plan.records import KEEP_IMAGES

TagNumber = Annotated[str, Field(pattern="^[0-9]{6,10}$")]


class Records(Fact):
    """The answer of the records program.

    Attributes:
        images: the image that the tag of a release leads to, by number in six digits; None where Docker could not be
            asked, or is not the runtime.
        secrets: the releases whose secrets are kept.
        switch: the document of the switch under way, as it was written; None without one.
    """

    records: Few[dict[str, Any]]
    images: dict[TagNumber, ImageId] | None = None
    secrets: Few[Number] = ()
    switch: dict[str, Any] | None = None

    def image(self, number: int) -> str | None:
        """The image that the tag of release ``number`` leads to."""
        return (self.images or {}).get(f"{number:06d}")


class RecordedContainer(Fact):
    """What counts here of a rank in a recorded plan."""

    env_file: str | None = None


class RecordedNode(Fact):
    """What counts here of a node in a recorded plan."""

    group: Label = ""
    containers: tuple[RecordedContainer, ...] = ()


class RecordedIds(Fact):
    """The image of a group, by node."""

    ids: dict[Label, ImageId] = Field(default_factory=dict)


class RecordedGroup(Fact):
    """What counts here of a recorded group."""

    verified: bool = True
    image: RecordedIds | None = None


class Served(Fact):
    """What is listed of a recorded plan."""

    model: str
    image: str | None
    nodes: dict[Label, RecordedNode] = Field(default_factory=dict)


class Listed(Fact):
    """What is listed of a record."""

    number: Number
    plan_hash: str
    verified_at: Time
    operator: str
    plan: Served
    image_digest: str | None = None
    operation: str = ""
    restores: Number = 0
    groups: dict[Label, RecordedGroup] = Field(default_factory=dict)

    @property
    def nodes(self) -> Iterator[str]:
        """The nodes of groups that have answered: others keep nothing of it."""
        for name, node in self.plan.nodes.items():
            if node.group in self.groups and self.groups[node.group].verified:
                yield name

    def image_on(self, node: str) -> str | None:
        """The image of the rank on ``node``; None where it is a process."""
        image = self.groups[self.plan.nodes[node].group].image
        return image.ids.get(node) if image else None

    def has_secrets(self, node: str) -> bool:
        """Whether the rank on ``node`` was started with secrets."""
        return any(rank.env_file is not None for rank in self.plan.nodes[node].containers)


@dataclasses.dataclass(frozen=True, slots=True)
class Lost:
    """What is lost of a release.

    Attributes:
        image: nodes whose tag of it is gone, or on another image.
        secrets: nodes without the secrets of their rank.
        unknown: nodes whose Docker did not say which images they keep.
    """

    image: list[str]
    secrets: list[str]
    unknown: list[str]


def kept_on(node: str, releases: Collection[Listed]) -> set[int]:
    """The numbers of the releases that ``node`` keeps, of all that it has recorded."""
    images = {each.number: each.image_on(node) if node in each.nodes else None for each in releases}
    return of_newest_images(images, KEEP_IMAGES)


def lost(release: Listed, answers: Mapping[str, Records]) -> Lost:
    """What of ``release``, which is kept, is lost on the nodes that answered."""
    found = Lost([], [], [])
    for node in release.nodes:
        answer = answers.get(node)
        if answer is None:
            continue
        image = release.image_on(node)
        if image is not None and answer.images is None:
            found.unknown.append(node)
        elif image is not None and answer.image(release.number) != image:
            found.image.append(node)
        if release.has_secrets(node) and release.number not in answer.secrets:
            found.secrets.append(node)
    return found
