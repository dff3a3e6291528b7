"""The playbook: what a cluster serves, with which image, arguments and environment, and how that is verified."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from sparkcluster.spec.base import Name, Section

Executor = Literal["auto", "ray", "native"]
ArgumentValue = bool | int | float | str | list[str | int | float] | dict[str, Any] | None
ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"


class Model(Section):
    """Which weights: a Hugging Face repository at a revision, or a directory that lies on the nodes."""

    id: str | None = Field(None, pattern=r"^[\w.-]+/[\w.-]+$", description="Hugging Face repository")
    revision: str = Field("main", pattern=r"^[\w./-]+$", description="branch, tag or commit of the repository")
    path: str | None = Field(None, description="directory of weights on every node; ~ is expanded there")

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

    source: str = Field(pattern=r"^[~/]", description="path on the node")
    target: str = Field(pattern=r"^/", description="path in the container")
    read_only: bool = True


class Cache(Section):
    """A directory that outlives the container; kept apart per image, since a stale one deadlocks TP."""

    name: Name
    target: str = Field(pattern=r"^/", description="path in the container, as /root/.cache/vllm")


class Verify(Section):
    """How a model shows that it answers; sent as real traffic is sent."""

    prompt: str = "What is 12 * 17? Answer with the number."
    expect: str | None = Field(None, description="regular expression that the answer must match somewhere")
    max_tokens: int = Field(512, ge=1, description="reasoning models need at least 512 to reach an answer")
    temperature: float = Field(0.0, ge=0)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    pause_s: float = Field(5, ge=0, le=600, description="the second completion comes after this many seconds")
    timeout_s: float = Field(180, gt=0, description="limit for one completion, first-use compilation included")


class Allow(Section):
    """A finding that this playbook accepts, and why."""

    code: str = Field(pattern=r"^[A-Z][A-Z0-9]*-[0-9]{3}$")
    reason: str = Field(min_length=8)


class Container(Section):
    """Docker options beyond those that every rank gets."""

    cap_add: list[str] = Field(default_factory=list, description="Linux capabilities, as SYS_NICE")
    shm_size: str | None = Field(None, pattern=r"^[0-9]+[bkmg]?$")


class Playbook(Section):
    """What the cluster serves."""

    name: Name
    description: str = ""
    model: Model
    image: str | None = Field(None, pattern=r"^[\w][\w./:@-]*$", description="reference by tag or digest")
    engine: Literal["vllm"] = "vllm"
    served_name: str | None = Field(None, description="name of the model in the API; default: the model's")
    tensor_parallel: int | Literal["auto"] = Field("auto", description="auto: the nodes of the group / pipeline")
    pipeline_parallel: int = Field(1, ge=1)
    executor: Executor = "auto"
    args: dict[str, ArgumentValue] = Field(
        default_factory=dict, description="engine arguments under vLLM's own flag names, without dashes in front"
    )
    env: dict[str, str] = Field(default_factory=dict)
    secrets: list[str] = Field(
        default_factory=list, description="variables taken from the controller's environment, never shown"
    )
    mounts: list[Mount] = Field(default_factory=list)
    setup: list[str] = Field(default_factory=list, description="shell lines run in the container before the engine")
    command: list[str] | None = Field(None, description="a whole command, for images driven by environment")
    caches: list[Cache] = Field(
        default_factory=lambda: [
            Cache(name="vllm", target="/root/.cache/vllm"),
            Cache(name="triton", target="/root/.triton"),
            Cache(name="flashinfer", target="/root/.cache/flashinfer"),
        ]
    )
    container: Container = Field(default_factory=lambda: Container.model_validate({}))
    verify: Verify = Field(default_factory=lambda: Verify.model_validate({}))
    ready_timeout_s: float = Field(1800, gt=0, description="limit from start to the first answer, in seconds")
    allow: list[Allow] = Field(default_factory=list)

    @property
    def model_name(self) -> str:
        """The name under which the API knows the model."""
        return self.served_name or self.model.id or str(self.model.path).rstrip("/").rsplit("/", 1)[-1]
