"""The record of a release on a node: a JSON document, which is validated only here.

A record of an older version may lack optional keys. Unknown keys are kept: the part of a group that keeps running is
recorded again.
"""

from __future__ import annotations

from typing import Annotated, Any, Required

from pydantic import AfterValidator, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from sparkcluster import engines
from sparkcluster.facts.base import Few, Measure, Number, Time
from sparkcluster.spec.base import EnvName
from sparkcluster.spec.playbook import Request, Sampling, Verify

ReleaseNumber = Annotated[int, Field(ge=0, lt=10**9)]
"""The number of a release: nine digits at most, as in names and labels."""
Label = Annotated[str, Field(pattern=r"^([0-9A-Za-z:][0-9A-Za-z.:%_-]{0,252})?$")]
"""Name of a group or a node; a node's may be its address; empty for the group of an older version."""
ImageId = Annotated[str, Field(pattern=r"^(sha256:)?[0-9A-Za-z]{1,128}$")]
RankName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,254}$")]
"""Name of a container, or of the directory of a process."""


def _known(engine: str) -> str:
    if engine not in engines.names():
        raise ValueError("no engine of this version of sparkcluster")
    return engine


@with_config(ConfigDict(extra="allow"))
class _Document(TypedDict, total=False):
    """Base of all parts of a record."""


def _readable_by(model: type[Sampling]) -> AfterValidator:
    """Keeps a document unchanged, if ``model`` can parse it."""

    def check(document: dict[str, Any]) -> dict[str, Any]:
        model.model_validate(document)
        return document

    return AfterValidator(check)


VerifyDocument = Annotated[dict[str, Any], _readable_by(Verify)]
"""How a group is verified, in the format of ``spec.playbook.Verify``."""


class Secrets(_Document, total=False):
    """Salt and hashes of secrets, see ``runtime.secrets``."""

    salt: str
    hashes: dict[EnvName, Annotated[str, Field(pattern="^[0-9a-f]*$")]]


class Launcher(_Document, total=False):
    """The launcher document of a rank: the keys that are used here."""

    group: str | None
    role: str | None
    executor: str | None
    address: str | None
    members: list[str] | None
    engine: list[str] | None
    ray: dict[str, Any] | None
    ray_path: str | None
    setup: list[str] | None
    secrets: Secrets | None


class PlannedContainer(_Document, total=False):
    """A rank in a plan document."""

    name: Required[RankName]
    image: str | None
    argv: list[str]
    launcher: Required[Launcher]
    env_file: str | None


class PlannedNode(_Document, total=False):
    """A node in a plan document."""

    group: Required[Label]
    role: str
    rank: int
    env: dict[str, str]
    secrets: list[str]
    containers: Required[Annotated[list[PlannedContainer], Field(min_length=1)]]


class PlanDocument(_Document, total=False):
    """A plan, as written by ``Plan.as_json``."""

    model: Required[str]
    image: str | None
    endpoints: dict[str, str | None]
    groups: list[list[str]]
    nodes: Required[Annotated[dict[Label, PlannedNode], Field(max_length=1024)]]


class ImageDocument(_Document, total=False):
    """The image of a group, as written by ``plan.image``."""

    ids: dict[Label, ImageId]
    build: ImageId
    layers: Few[str]


class Speeds(_Document, total=False):
    """Tokens/s before and after a switch from the release ``source``."""

    source: Required[Number]
    before: Required[Annotated[Measure, Field(gt=0)]]
    after: Required[Measure]


class Measured(_Document, total=False):
    """Measurements while verifying a group, and the memory that its engine logged; None if missing in the log."""

    ttft_s: Measure | None
    start_s: Measure | None
    switch: Speeds
    tokens_per_s: Measure | None
    load_gib: Measure | None
    kv_gib: Measure | None
    kv_tokens: Measure | None
    graphs_gib: Measure | None
    peak_gib: Measure | None
    used_gib: Measure | None


class PlaybookDocument(_Document, total=False):
    """The parts of a recorded playbook that are used here; the complete one if a release is started again."""

    name: str
    model: dict[str, Any]
    engine: Annotated[str, AfterValidator(_known)]
    verify: VerifyDocument
    request: Annotated[dict[str, Any], _readable_by(Request)]
    args: dict[str, Any]


class FileSetDocument(_Document, total=False):
    """A playbook file that was mounted; ``mark`` and ``name`` locate it on a node."""

    mark: Required[Annotated[str, Field(pattern="^[0-9a-f]{16,64}$")]]
    name: Required[Annotated[str, Field(pattern=r"^[^/\x00-\x1f\x7f,:\"]{1,255}$")]]


class GroupDocument(_Document, total=False):
    """The record of a group, in addition to its plan."""

    release: Number
    verify: VerifyDocument
    verified: bool
    network: dict[str, Any] | None
    written: dict[str, Any] | None
    secrets: Secrets
    image: ImageDocument | None
    versions: dict[Label, dict[str, str]]
    measured: Measured
    playbook: PlaybookDocument | None
    beside: dict[str, FileSetDocument]
    selected: dict[str, Any]


class SwitchDocument(_Document, total=False):
    """An unfinished switch to another release: from ``source`` to a new playbook, or ``back`` to an earlier release."""

    number: Required[Number]
    source: Required[Number]
    back: Required[Number | None]
    groups: Required[list[Label]]
    operator: Required[str]
    began_at: Required[Time]
    playbook: Required[PlaybookDocument]
    beside: Required[dict[str, FileSetDocument]]
    selected: dict[str, Any]


class ReachedNode(_Document, total=False):
    """How a node is reached."""

    host: Required[str]
    connection: str
    ssh: dict[str, Any]


class Record(_Document, total=False):
    """The document that ``plan.release_record.record`` writes.

    Attributes:
        verified_at: when the model answered, in seconds since 1970.
        version: version of sparkcluster.
        image_digest: the image as any node can pull it, ``name@sha256:…``.
        partial: whether other groups were still to be switched; such a release is not a rollback target.
        operation: the command.
        restores: the release that this one rolled back to, or 0.
    """

    number: Number
    plan_hash: str
    verified_at: Time
    operator: str
    version: str
    image_digest: str | None
    partial: bool
    operation: str
    restores: Number
    playbook: PlaybookDocument
    nodes: dict[str, ReachedNode]
    plan: PlanDocument
    groups: dict[Label, GroupDocument]
