"""Which releases can be gone back to, and what of that is lost on which node. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import Field

from sparkcluster.facts.base import Fact, Few, Number
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.facts.release_record import ImageId
from sparkcluster.node.shared import of_newest_images
from sparkcluster.plan.release_record import KEEP_IMAGES, RecordedGroup, recorded_groups

TagNumber = Annotated[str, Field(pattern="^[0-9]{6,10}$")]


class Records(Fact):
    """The answer of the records program.

    Attributes:
        records: each as it was written; ``release_of`` reads one.
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


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """A release, the nodes that have its record, and those that keep something of it.

    Attributes:
        nodes: that have the record.
        keepers: the nodes of groups that have answered, each with its group: others keep nothing of it.
    """

    release: ReleaseFact
    nodes: list[str]
    keepers: Mapping[str, RecordedGroup]

    @property
    def model(self) -> str:
        """The model that it serves; empty in a record of an older version, which has no plan."""
        return self.release.record["plan"]["model"] if "plan" in self.release.record else ""


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


def release_of(document: Mapping[str, Any]) -> ReleaseFact:
    """The release that a record is about.

    Raises:
        ValidationError: it is malformed: edited, or of another version.
    """
    keys = {key: document.get(key) for key in ("number", "plan_hash")}
    return ReleaseFact.model_validate({**keys, "record": document})


def recorded(release: ReleaseFact) -> Recorded:
    """``release``, of which no node is known yet to have the record."""
    groups = recorded_groups(release.record).values()
    return Recorded(release, [], {node: group for group in groups if group.verified for node in group.ranks})


def kept_on(node: str, releases: Collection[Recorded]) -> set[int]:
    """The numbers of the releases that ``node`` keeps, of all that it has recorded."""
    groups = {each.release.number: each.keepers.get(node) for each in releases}
    images = {number: group.image_on(node) if group else None for number, group in groups.items()}
    return of_newest_images(images, KEEP_IMAGES)


def lost(release: Recorded, answers: Mapping[str, Records]) -> Lost:
    """What of ``release``, which is kept, is lost on the nodes that answered."""
    found, number = Lost([], [], []), release.release.number
    for node, group in release.keepers.items():
        answer = answers.get(node)
        if answer is None:
            continue
        image = group.image_on(node)
        if image is not None and answer.images is None:
            found.unknown.append(node)
        elif image is not None and answer.image(number) != image:
            found.image.append(node)
        if group.has_secrets(node) and number not in answer.secrets:
            found.secrets.append(node)
    return found
