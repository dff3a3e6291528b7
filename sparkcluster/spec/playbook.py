"""The playbook: model, image, arguments and environment to serve, and how to verify it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from sparkcluster import engines
from sparkcluster.engines.base import ModelKind
from sparkcluster.spec.base import (
    BesidePath,
    Capability,
    ContainerPath,
    Device,
    EnvName,
    FindingCode,
    MountSource,
    Name,
    NodePath,
    Section,
    form,
)

Executor = Literal["auto", "ray", "native"]
ArgumentValue = bool | int | float | str | list[str | int | float] | dict[str, Any] | None
REPOSITORY = "[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*"
REVISION = "[A-Za-z0-9_][A-Za-z0-9_./-]*"
COMMIT = "[0-9a-f]{40}"
Repository = Annotated[str, form(f"^{REPOSITORY}$", "a Hugging Face repository, such as owner/name")]
Revision = Annotated[str, form(f"^{REVISION}$", "a branch, tag or commit")]
ClassName = Annotated[str, form(r"^[A-Za-z][A-Za-z0-9_]*$", "the name of a class, such as Qwen3MoeForCausalLM")]
# Parts must not be empty, such as the tag of IMAGE:${UNSET}.
_PART = "[A-Za-z0-9_][A-Za-z0-9_.-]*"
Image = Annotated[str, form(f"^{_PART}([/:@]{_PART})*$", "an image, such as registry.example/engine:v1.0")]
# As in huggingface_hub: Python's fnmatch, in which * also matches /.
FilePattern = Annotated[str, form(r"^[!-.0-~][ -~]*$", "a file pattern, such as *.json", max_length=128)]
_FOLDERS = "([A-Za-z0-9_][A-Za-z0-9_.+ -]*/)*"
GgufFile = Annotated[
    str,
    form(f"^{_FOLDERS}[A-Za-z0-9_][A-Za-z0-9_.+ -]*[.]gguf$", "a file such as Q4/model-Q4_K_M.gguf", max_length=256),
]
# docs.docker.com, docker container run, --ulimit
Ulimit = Literal[
    "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio",
    "rttime", "sigpending", "stack",
]  # fmt: skip
SERVED_NAME = "[A-Za-z0-9~/][A-Za-z0-9_.:/~-]*"
ServedName = Annotated[str, form(f"^{SERVED_NAME}$", "a name of letters, digits and . _ : / ~ -")]
# Rejects 00 and 0x0, which would also be root.
_USER = "([a-z_][a-z0-9_-]{0,31}|0|[1-9][0-9]{0,9})"
USER = f"{_USER}(:{_USER})?"
User = Annotated[str, form(f"^{USER}$", 'a user by name or number, such as "1000:1000" or nobody')]
VARIANT = r"([1-9][0-9]{0,3})(-([1-9][0-9]{0,3})|\+)?"
VariantKey = Annotated[str, form(f"^{VARIANT}$", "a number of nodes, such as 2, 2-4 or 2+")]
Checkpoint = Literal["modelopt", "compressed-tensors", "mxfp4", "fp8", "gptq", "awq", "bf16"]


def is_root(user: str) -> bool:
    """Whether ``user`` of a container (name or number, optional group; empty for the default) is root."""
    return user.partition(":")[0] in {"", "0", "root"}


class Model(Section):
    """The weights: a Hugging Face repository at a revision, or a directory on the nodes."""

    id: Repository | None = Field(None, description="Hugging Face repository")
    revision: Revision = Field("main", description="branch, tag or commit of the repository")
    path: NodePath | None = Field(None, description="directory of weights on every node; ~ is expanded there")
    checkpoint: Checkpoint | None = Field(None, description="format of the weights; default: from config.json")
    architecture: ClassName | None = Field(None, description="model class; default: from config.json")
    files: list[FilePattern] = Field(
        [],
        max_length=64,
        description="files to stage, such as `*.json` and `*Q4_K_M.gguf`; default: files that the engine reads, "
        "without original/ and formats of other engines",
    )
    exclude: list[FilePattern] = Field([], max_length=64, description="files not to stage, such as `demo/`")
    file: GgufFile | None = Field(
        None, description="GGUF file to serve, or its first part; only for engines that serve a single file"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Model:
        if (self.id is None) == (self.path is None):
            raise ValueError("must have either id (a Hugging Face repository) or path (a directory)")
        if self.path is not None and "revision" in self.model_fields_set:
            raise ValueError("revision applies to a repository (id); a directory (path) has none", "remove revision")
        return self

    @property
    def label(self) -> str:
        """Repository or directory as written."""
        return self.id or str(self.path)


class Companion(Model):
    """A repository loaded in addition to the model, such as a drafter, adapter or tokenizer."""

    companion: bool = True


class Mount(Section):
    """A directory or file mounted into the container: of the node, or a playbook file, which is copied to the nodes."""

    source: MountSource = Field(description="path on the node, with ~ expanded; ./… is relative to the playbook")
    target: ContainerPath = Field(description="path in the container")
    read_only: bool = Field(True, description="whether it is read-only in the container")

    @property
    def is_local(self) -> bool:
        """Whether the source is a playbook file, rather than a path on the node."""
        return self.source.startswith("./")


class Cache(Section):
    """A directory that survives the container, per image and playbook: a stale cache can deadlock the engine."""

    name: Name = Field(description="name of its directory below state_dir")
    target: ContainerPath = Field(description="path in the container, such as /root/.cache/engine")


# Template variables that switch reasoning (model cards): the first for Qwen, Nemotron, Gemma and GLM, the second for
# DeepSeek and Kimi. Mistral's tokenizer rejects unknown ones (Alishahryar1/free-claude-code#130), so none is guessed.
SWITCHES = ("enable_thinking", "thinking")
# Tokens for an answer after reasoning: at least 512, with tools 1,024 (source: check SM121-085); request.max_tokens of
# most bundled playbooks is this.
REASONING_TOKENS = 2048


class Sampling(Section):
    """Parameters of a request; engine and model decide about omitted ones."""

    temperature: float | None = Field(None, ge=0, le=2, description="as recommended by the model's authors")
    top_p: float | None = Field(None, gt=0, le=1, description="as recommended by the model's authors")
    top_k: int | None = Field(None, ge=-1, description="as recommended by the model's authors")
    max_tokens: int | None = Field(None, ge=1, description="maximum tokens, enough for an answer after the reasoning")
    chat_template_kwargs: dict[str, Any] = Field({}, description="such as enable_thinking: false for no reasoning")

    @property
    def body(self) -> dict[str, Any]:
        """The set fields, by their names in OpenAI's API as extended by engines."""
        fields = {name: getattr(self, name) for name in Sampling.model_fields}
        return {name: value for name, value in fields.items() if value not in (None, {})}


class Request(Sampling):
    """Recommended request parameters: `connect` shows them, `ask` sends them, `verify` uses them as defaults."""

    note: str = Field("", description="advice to users, in one sentence")


class Verify(Sampling):
    """The request that verifies the endpoint."""

    kind: ModelKind | None = Field(
        None, description="purpose of the model: chat, embeddings or rerank; default: from its arguments"
    )
    prompt: str = Field(
        "What is 12 * 17? Answer with the number.", min_length=1, description="prompt of the completion"
    )
    expect: str | None = Field(
        None, max_length=1000, description="regular expression; the answer must contain a match, found within 2 s"
    )
    max_tokens: int = Field(512, ge=1, description="raised to 2048 with a reasoning parser, unless reasoning is off")
    temperature: float | None = Field(None, ge=0, le=2, description="default: request's, else 0 (greedy)")
    top_p: float | None = Field(None, gt=0, le=1, description="default: request's")
    top_k: int | None = Field(None, ge=-1, description="default: request's")
    chat_template_kwargs: dict[str, Any] = Field({}, description="added to request's, with its reasoning switch off")
    pause_s: float = Field(5, ge=0, le=600, description="pause before the second completion, in seconds")
    timeout_s: float = Field(180, gt=0, description="seconds to wait for a token; for the first: ready_timeout_s")
    tools: bool = Field(False, description="also require a tool call at a start")
    reasoning: bool = Field(False, description="also require reasoning that is separate from the answer at a start")

    @field_validator("expect")
    @classmethod
    def _regular(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"must be a regular expression: {error}") from None
        return value

    @model_validator(mode="after")
    def _only_chat(self) -> Verify:
        if self.kind in {"embeddings", "rerank"} and (self.tools or self.reasoning):
            raise ValueError(f"tools and reasoning do not apply to kind: {self.kind}", "remove them")
        return self


class Figure(Section):
    """A measured or published figure."""

    what: str = Field(min_length=2, description="such as decode, prefill, time to first token, weights, KV cache")
    value: int | float | list[int | float] = Field(description="a number, or the ends of a range")
    unit: str = Field(min_length=1, description="unit, such as tok/s, s, GB, tokens")
    when: str = Field("", description="conditions of the measurement")
    source: str = Field(min_length=8, description="URL or title of the source")
    approximate: bool = Field(False, description="whether the source calls it approximate")


def verifying(verify: Verify, request: Request, args: Mapping[str, Any], engine: str) -> Verify:
    """The effective ``verify`` of a model of ``engine``: its unset fields are taken from ``request``.

    Reasoning is switched off if ``request`` or ``args`` names its switch. Otherwise, with a reasoning parser, at least
    ``REASONING_TOKENS`` are allowed.
    """
    default = args.get("default-chat-template-kwargs")
    named = {*request.chat_template_kwargs, *(default if isinstance(default, dict) else ())}
    off = dict.fromkeys(named & set(SWITCHES), False)
    options = {**request.chat_template_kwargs, **off, **verify.chat_template_kwargs}
    sampled = {"temperature": 0.0, **request.body, **verify.body, "chat_template_kwargs": options}
    sampled["max_tokens"] = verify.max_tokens
    sampled["kind"] = verify.kind or engines.engine(engine).kind(args)
    if "reasoning-parser" in args and all(options.get(name) is not False for name in SWITCHES):
        sampled["max_tokens"] = max(verify.max_tokens, REASONING_TOKENS)
    return verify.model_copy(update=sampled)


class Allow(Section):
    """A finding that this playbook accepts, with a reason."""

    code: FindingCode = Field(description="code of the finding, such as SM121-083")
    reason: str = Field(min_length=8, description="why it is acceptable")


class Build(Section):
    """An image built on a node from ``image`` and a directory of playbook files, then copied to the other nodes."""

    context: BesidePath = Field(description="build context: a directory relative to the playbook, such as ./build")
    dockerfile: Name = Field("Dockerfile", description="Dockerfile in the context, with `ARG BASE` and `FROM $BASE`")
    script: Name | None = Field(None, description="shell script in it to run in the image, instead of a Dockerfile")
    timeout_s: float = Field(3600, gt=0, le=86_400, description="timeout of the build, in seconds")

    @model_validator(mode="after")
    def _one_file(self) -> Build:
        if self.script is not None and "dockerfile" in self.model_fields_set:
            raise ValueError("script cannot be combined with dockerfile", "keep one of them")
        return self


class Container(Section):
    """Additional Docker options of the ranks."""

    cap_add: list[Capability] = Field([], description="Linux capabilities, such as SYS_NICE")
    devices: list[Device] = Field([], description="device files in addition to GPUs and RDMA, such as /dev/gdrdrv")
    ulimits: dict[Ulimit, Annotated[int, Field(ge=-1)]] = Field(
        {},
        description="limits, soft and hard, such as nofile: 65536; -1: unlimited. Default: memlock -1, stack 64 MiB, "
        "nofile 1048576",
    )
    user: User | None = Field(None, description='user of the ranks, such as "1000:1000"; default: the image\'s')

    @model_validator(mode="after")
    def _of_root(self) -> Container:
        if self.cap_add and self.user is not None and not is_root(self.user):
            message = f"cap_add has no effect for user {self.user}: Docker gives capabilities only to root"
            raise ValueError(message, "remove cap_add or user")
        return self


class Nodes(Section):
    """Supported group sizes."""

    min: int = Field(1, ge=1, description="minimum nodes of a group")
    max: int | None = Field(None, ge=1, description="maximum nodes of a group; default: no limit")

    @model_validator(mode="after")
    def _ordered(self) -> Nodes:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max {self.max} is below min {self.min}")
        return self

    def allow(self, nodes: int) -> bool:
        """Whether the group size ``nodes`` is supported."""
        return self.min <= nodes and (self.max is None or nodes <= self.max)


class Playbook(Section):
    """A model and how to serve it."""

    name: Name = Field(description="name of the playbook, equal to its file name without suffix")
    extends: str | None = Field(None, min_length=1, max_length=1024, description="playbook to extend, by name or path")
    overlays: list[Name] = Field([], description="allowed overlays, for `playbook: NAME+OVERLAY`")
    description: str = Field("", description="one line about the model and the source of its figures")
    use: str = Field("", max_length=20, description="purpose in a few words, listed by `playbooks`")
    purposes: list[Name] = Field([], description="keywords for `playbooks --for`, such as coding")
    source: list[str] = Field([], description="sources of the recipe: URLs or titles")
    goal: Literal["speed", "memory"] = Field(
        "speed", description="optimization goal of its arguments; memory: leave memory to other programs"
    )
    figures: list[Figure] = Field([], description="measured and published figures")
    request: Request = Field(default_factory=Request, description="recommended request parameters")
    model: Model = Field(description="the weights")
    image: Image | None = Field(None, description="container image, by tag or digest; not needed with runtime process")
    build: Build | None = Field(None, description="build the served image from image, on a node")
    engine: str = Field(engines.DEFAULT, description=f"inference engine: {', '.join(engines.names())}")
    served_name: ServedName | None = Field(None, description="the model's name in the API; default: id or directory")
    aliases: list[ServedName] = Field([], max_length=16, description="additional names of the model in the API")
    nodes: Nodes = Field(default_factory=Nodes, description="supported group sizes")
    variants: dict[VariantKey, dict[str, Any]] = Field({}, description="overrides by number of nodes: 2, 2-4, 2+")
    tensor_parallel: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="tensor parallel size; auto: nodes of the group / pipeline_parallel"
    )
    pipeline_parallel: int = Field(1, ge=1, description="pipeline stages")
    executor: Executor = Field(
        "auto",
        description="ray (staged if the image lacks it), native (the engine's multi-node backend), or auto: ray if "
        "available",
    )
    args: dict[str, ArgumentValue] = Field({}, description="engine flags, without leading dashes")
    env: dict[EnvName, str] = Field({}, description="environment of every rank, in addition to sparkcluster's")
    secrets: list[EnvName] = Field([], description="environment variables on this machine; never shown")
    mounts: list[Mount] = Field([], description="additional mounts of the container")
    setup: list[str] = Field([], description="shell lines to run in the container before the engine")
    command: list[str] | None = Field(None, min_length=1, description="complete command; replaces args")
    caches: list[Cache] | None = Field(None, description="kept between containers of an image; default: the engine's")
    container: Container = Field(default_factory=Container, description="additional options of the container")
    verify: Verify = Field(default_factory=Verify, description="request that verifies the endpoint")
    ready_timeout_s: float = Field(1800, gt=0, description="timeout from start to the first answer, in seconds")
    allow: list[Allow] = Field([], description="accepted findings, with reasons")

    @field_validator("engine")
    @classmethod
    def _engine(cls, value: str) -> str:
        if value not in engines.names():
            raise ValueError(f"must be one of {', '.join(engines.names())}")
        return value

    @property
    def parts(self) -> int:
        """Pipeline stages times data-parallel replicas; each part has tensor-parallel-size ranks."""
        data = self.args.get("data-parallel-size", 1)
        return self.pipeline_parallel * (data if isinstance(data, int) and data > 0 else 1)

    @property
    def ranks(self) -> int | None:
        """Ranks of a group; None if they follow from its number of nodes."""
        return None if self.tensor_parallel == "auto" else self.tensor_parallel * self.parts

    def serves_on(self, nodes: int) -> bool:
        """Whether a group of ``nodes`` has the right number of ranks and is allowed."""
        even = nodes % self.parts == 0 if self.ranks is None else nodes == self.ranks
        return even and self.nodes.allow(nodes)

    @property
    def kept_caches(self) -> list[Cache]:
        """Directories kept between containers: the playbook's, else the engine's."""
        if self.caches is not None:
            return self.caches
        return [Cache(name=name, target=target) for name, target in engines.engine(self.engine).caches.items()]

    @property
    def companions(self) -> list[Companion]:
        """Repositories that the engine loads in addition to the model."""
        named = engines.engine(self.engine).repositories(self)
        return [Companion(id=name, revision=revision) for name, revision in named.items() if name != self.model.id]

    @property
    def choice(self) -> dict[str, Any]:
        """The selection of model files, for ``node.model_choice``."""
        loads = engines.engine(self.engine).weights_format(self)
        series = [re.sub(r"-\d{5}-of-", "-*-of-", self.model.file)] if self.model.file else []
        return {"include": [*series, *self.model.files], "exclude": self.model.exclude, "format": loads}

    @property
    def verifying(self) -> Verify:
        """The effective verification request."""
        return verifying(self.verify, self.request, self.args, self.engine)

    @property
    def chats(self) -> bool:
        """Whether the model generates text, rather than embeddings or scores."""
        return (self.verify.kind or engines.engine(self.engine).kind(self.args)) == "chat"

    @property
    def model_name(self) -> str:
        """Name of the model in the API."""
        return self.served_name or self.model.id or str(self.model.path).rstrip("/").rsplit("/", 1)[-1]
