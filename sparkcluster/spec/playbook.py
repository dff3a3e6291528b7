"""The playbook: what a cluster serves, by which image, arguments and environment, and how it is verified."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from sparkcluster import engines
from sparkcluster.spec.base import EnvName, FindingCode, Name, NodePath, Section

Executor = Literal["auto", "ray", "native"]
ArgumentValue = bool | int | float | str | list[str | int | float] | dict[str, Any] | None
Capability = Annotated[str, Field(pattern=r"^[A-Z][A-Z_]{2,31}$")]
ContainerPath = Annotated[str, Field(pattern=r'^/[^\x00-\x1f\x7f,:"]*$', max_length=1024)]


Checkpoint = Literal["modelopt", "compressed-tensors", "mxfp4", "fp8", "gptq", "awq", "bf16"]


class Model(Section):
    """Which weights: a Hugging Face repository at a revision, or a directory that lies on the nodes."""

    id: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*$",
        description="Hugging Face repository",
    )
    revision: str = Field(
        "main",
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$",
        description="branch, tag or commit of the repository",
    )
    path: NodePath | None = Field(None, description="directory of weights on every node; ~ is expanded there")
    checkpoint: Checkpoint | None = Field(
        None, description="how the weights are stored; default: what their config.json says once they are there"
    )
    architecture: str | None = Field(
        None,
        pattern=r"^[A-Za-z][A-Za-z0-9_]*$",
        description="class in config.json's architectures; default: likewise",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Model:
        if (self.id is None) == (self.path is None):
            raise ValueError("give either id (a Hugging Face repository) or path (a directory)")
        return self

    @property
    def label(self) -> str:
        """Repository or directory, as the user wrote it."""
        return self.id or str(self.path)


class Mount(Section):
    """A directory or file of the node that the container sees."""

    source: NodePath = Field(description="path on the node; ~ is expanded there")
    target: ContainerPath = Field(description="path in the container")
    read_only: bool = Field(True, description="whether the container may only read it")


class Cache(Section):
    """A directory that outlives the container; kept apart per image, since a stale one deadlocks TP."""

    name: Name = Field(description="name of its directory below state_dir")
    target: ContainerPath = Field(description="path in the container, as /root/.cache/engine")


class Verify(Section):
    """How a model shows that it answers; sent as real traffic is sent."""

    prompt: str = Field("What is 12 * 17? Answer with the number.", min_length=1, description="what the model is asked")
    expect: str | None = Field(None, description="regular expression that the answer must match somewhere")
    max_tokens: int = Field(512, ge=1, description="reasoning models need at least 512 to reach an answer")
    temperature: float = Field(0.0, ge=0, le=2, description="0 is greedy, and the same every time")
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="sent along as real traffic sends them, as enable_thinking: false"
    )
    pause_s: float = Field(5, ge=0, le=600, description="the second completion comes after this many seconds")
    timeout_s: float = Field(180, gt=0, description="limit for one completion, first-use compilation included")

    @field_validator("expect")
    @classmethod
    def _regular(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"must be a regular expression: {error}") from None
        return value


class Figure(Section):
    """What somebody measured, or what their guide promises, so that a user knows what to expect."""

    what: str = Field(min_length=2, description="as decode, prefill, time to first token, weights, KV cache")
    value: int | float | list[int | float] = Field(description="one number, or the two ends of a range")
    unit: str = Field(min_length=1, description="as tok/s, s, GB, tokens")
    when: str = Field("", description="under which conditions")
    source: str = Field(min_length=8, description="who says so: an address or a title")
    approximate: bool = Field(False, description="whether the source itself says about")


class Request(Section):
    """How requests to this model are best sent; told to users, not enforced."""

    temperature: float | None = Field(None, ge=0, le=2, description="as the model's makers advise")
    top_p: float | None = Field(None, gt=0, le=1, description="likewise")
    top_k: int | None = Field(None, ge=-1, description="likewise")
    max_tokens: int | None = Field(None, ge=1, description="enough for an answer after its reasoning")
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="as enable_thinking: false, which turns the reasoning off"
    )
    note: str = Field("", description="what else to know, in a sentence")


class Allow(Section):
    """A finding that this playbook accepts, and why."""

    code: FindingCode = Field(description="code of the finding, as MODEL-012")
    reason: str = Field(min_length=8, description="why this playbook may do so")


class Container(Section):
    """Docker options beyond those that every rank gets."""

    cap_add: list[Capability] = Field(default_factory=list, description="Linux capabilities, as SYS_NICE")


class Playbook(Section):
    """What the cluster serves."""

    name: Name = Field(description="name of the playbook; that of its file")
    extends: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="name or path of a playbook that this one stands on: keys here win, section by section",
    )
    overlays: list[Name] = Field(
        default_factory=list, description="overlays that may be put on it, as in `playbook: NAME+OVERLAY`"
    )
    description: str = Field("", description="one line on what it serves and where its figures come from")
    source: list[str] = Field(default_factory=list, description="whose recipe it is: addresses or titles")
    goal: Literal["speed", "memory"] = Field(
        "speed", description="what its arguments were chosen for; memory: to leave room for other programs"
    )
    figures: list[Figure] = Field(default_factory=list, description="what was measured with it, and by whom")
    request: Request = Field(
        default_factory=lambda: Request.model_validate({}), description="how requests are best sent"
    )
    model: Model = Field(description="which weights")
    image: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./:@-]*$",
        description="container image, by tag or digest; runtime process needs none",
    )
    engine: str = Field(engines.DEFAULT, description="the inference engine: a directory of sparkcluster/engines")
    served_name: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9~/][A-Za-z0-9_.:/~-]*$",
        description="name of the model in the API; default: the model's",
    )
    tensor_parallel: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="ranks that share each layer; auto: nodes of the group / pipeline_parallel"
    )
    pipeline_parallel: int = Field(1, ge=1, description="stages the layers are divided into")
    executor: Executor = Field(
        "auto",
        description="how the ranks meet: ray, which is brought to an image without it, native, or auto: "
        "ray where it can be had",
    )
    args: dict[str, ArgumentValue] = Field(
        default_factory=dict,
        description="engine arguments under the engine's own flag names, without dashes in front",
    )
    env: dict[EnvName, str] = Field(
        default_factory=dict, description="environment of every rank, beside what the plan sets"
    )
    secrets: list[EnvName] = Field(
        default_factory=list, description="variables taken from the controller's environment, never shown"
    )
    mounts: list[Mount] = Field(default_factory=list, description="what else of the node a container sees")
    setup: list[str] = Field(default_factory=list, description="shell lines run in the container before the engine")
    command: list[str] | None = Field(
        None, min_length=1, description="a whole command, for images driven by environment"
    )
    caches: list[Cache] | None = Field(
        None,
        description="directories kept from one container to the next of the same image; default: the engine's",
    )
    container: Container = Field(
        default_factory=lambda: Container.model_validate({}), description="further options of the container"
    )
    verify: Verify = Field(
        default_factory=lambda: Verify.model_validate({}), description="the completion that proves it serves"
    )
    ready_timeout_s: float = Field(1800, gt=0, description="limit from start to the first answer, in seconds")
    allow: list[Allow] = Field(default_factory=list, description="findings that this playbook accepts, and why")

    @field_validator("engine")
    @classmethod
    def _engine(cls, value: str) -> str:
        if value not in engines.names():
            raise ValueError(f"must be one of {', '.join(engines.names())}")
        return value

    @property
    def kept_caches(self) -> list[Cache]:
        """Directories kept from one container to the next: the playbook's, else those that its engine needs."""
        if self.caches is not None:
            return self.caches
        return [Cache(name=name, target=target) for name, target in engines.engine(self.engine).caches.items()]

    @property
    def model_name(self) -> str:
        """The name under which the API knows the model."""
        return self.served_name or self.model.id or str(self.model.path).rstrip("/").rsplit("/", 1)[-1]
