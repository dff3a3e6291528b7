"""The playbook: model, image, arguments and environment that a cluster serves, and how it is verified."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from sparkcluster import engines
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
# A separator is followed by something: no tag is empty, as that of IMAGE:${UNSET} is.
_PART = "[A-Za-z0-9_][A-Za-z0-9_.-]*"
Image = Annotated[
    str, form(f"^{_PART}([/:@]{_PART})*$", "an image such as registry.example/engine:v1.0, no part empty")
]
# As in huggingface_hub: of Python's fnmatch, where * stands for / too.
FilePattern = Annotated[
    str, form(r"^[!-.0-~][ -~]*$", "a pattern of files in the repository, such as *.json", max_length=128)
]
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
ServedName = Annotated[str, form(f"^{SERVED_NAME}$", "letters, digits and . _ : / ~ - only")]
# Neither 00 nor 0x0 is another root.
_USER = "([a-z_][a-z0-9_-]{0,31}|0|[1-9][0-9]{0,9})"
USER = f"{_USER}(:{_USER})?"
User = Annotated[str, form(f"^{USER}$", 'a user by name or number, such as "1000:1000" or nobody')]
VARIANT = r"([1-9][0-9]{0,3})(-([1-9][0-9]{0,3})|\+)?"
VariantKey = Annotated[str, form(f"^{VARIANT}$", "a number of nodes, as 2, 2-4 or 2+")]
Checkpoint = Literal["modelopt", "compressed-tensors", "mxfp4", "fp8", "gptq", "awq", "bf16"]


def is_root(user: str) -> bool:
    """Whether ``user`` of a container (name or number, with or without group; empty by default) is root."""
    return user.partition(":")[0] in {"", "0", "root"}


class Model(Section):
    """The weights: a Hugging Face repository at a revision, or a directory on the nodes."""

    id: Repository | None = Field(None, description="Hugging Face repository")
    revision: Revision = Field("main", description="branch, tag or commit of the repository")
    path: NodePath | None = Field(None, description="directory of weights on every node; ~ is expanded there")
    checkpoint: Checkpoint | None = Field(None, description="format of the weights; default: that in config.json")
    architecture: ClassName | None = Field(None, description="class in config.json's architectures; default: likewise")
    files: list[FilePattern] = Field(
        [],
        max_length=64,
        description="files that are served, such as `*.json` and `*Q4_K_M.gguf`; default: what the engine reads, "
        "without original/ and formats of other engines",
    )
    exclude: list[FilePattern] = Field([], max_length=64, description="those that are not served, such as `demo/`")
    file: GgufFile | None = Field(
        None, description="the GGUF that is served, of a split one its first part; only of engines that serve one file"
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
    """A repository that is loaded beside the model, and need not be a whole model: drafter, adapter, tokenizer."""

    companion: bool = True


class Mount(Section):
    """A directory or file of the node in the container, or one beside the playbook, which is copied to the nodes."""

    source: MountSource = Field(description="path on the node, where ~ is expanded; ./… is beside the playbook")
    target: ContainerPath = Field(description="path in the container")
    read_only: bool = Field(True, description="whether it is read-only in the container")

    @property
    def is_beside(self) -> bool:
        """Whether it is beside the playbook, rather than on the node."""
        return self.source.startswith("./")


class Cache(Section):
    """A directory that outlives the container; one per image, since a stale one deadlocks, and per playbook."""

    name: Name = Field(description="name of its directory below state_dir")
    target: ContainerPath = Field(description="path in the container, such as /root/.cache/engine")


# Template variables that turn reasoning on and off: of Qwen, Nemotron, Gemma and GLM; of DeepSeek and Kimi (the models'
# cards). A model of Mistral's own tokenizer refuses every one (Alishahryar1/free-claude-code#130), so none is guessed.
SWITCHES = ("enable_thinking", "thinking")
# What an answer may take where reasoning comes first: 512 at least, 1,024 for tools (source: check SM121-085);
# request.max_tokens of most bundled playbooks is this.
REASONING_TOKENS = 2048


class Sampling(Section):
    """What a request carries beside its messages; engine and model decide about what is left out."""

    temperature: float | None = Field(None, ge=0, le=2, description="as recommended by the model's authors")
    top_p: float | None = Field(None, gt=0, le=1, description="likewise")
    top_k: int | None = Field(None, ge=-1, description="likewise")
    max_tokens: int | None = Field(None, ge=1, description="enough for an answer after the reasoning")
    chat_template_kwargs: dict[str, Any] = Field({}, description="such as enable_thinking: false: no reasoning")

    @property
    def body(self) -> dict[str, Any]:
        """The fields of a request that are set, by the names of OpenAI's API as engines extend it."""
        fields = {name: getattr(self, name) for name in Sampling.model_fields}
        return {name: value for name, value in fields.items() if value not in (None, {})}


class Request(Sampling):
    """What clients are told to send: `connect` shows it, `ask` sends it, and `verify` does where it says nothing."""

    note: str = Field("", description="further advice, in a sentence")


Kind = Literal["chat", "embeddings", "rerank"]
"""What a model is for, by the path of the API that clients ask: ``/chat/completions``, ``/embeddings``, ``/rerank``."""


class Verify(Sampling):
    """The request that verifies the endpoint; sent like real traffic, as ``verifying`` completes it."""

    kind: Kind | None = Field(
        None, description="what the model is for: chat, embeddings or rerank; default: what its arguments say"
    )
    prompt: str = Field(
        "What is 12 * 17? Answer with the number.", min_length=1, description="prompt of the completion"
    )
    expect: str | None = Field(
        None, max_length=1000, description="regular expression to find in the answer, within 2 s of processor time"
    )
    max_tokens: int = Field(512, ge=1, description="with a reasoning parser 2048 at least, unless thinking is off")
    temperature: float | None = Field(None, ge=0, le=2, description="default: request's, else 0: greedy")
    top_p: float | None = Field(None, gt=0, le=1, description="default: request's")
    top_k: int | None = Field(None, ge=-1, description="default: request's")
    chat_template_kwargs: dict[str, Any] = Field({}, description="beside request's, sent with its thinking off")
    pause_s: float = Field(5, ge=0, le=600, description="pause before the second completion, in seconds")
    timeout_s: float = Field(180, gt=0, description="longest wait for a token; the first may take ready_timeout_s")
    tools: bool = Field(False, description="whether a start also has to answer with a tool call, as agents ask for")
    reasoning: bool = Field(False, description="whether a start also has to stream reasoning apart from the answer")

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
            raise ValueError(f"has tools or reasoning, which a model for {self.kind} has not", "remove them")
        return self


class Figure(Section):
    """A measured or published figure, so that users know what to expect."""

    what: str = Field(min_length=2, description="such as decode, prefill, time to first token, weights, KV cache")
    value: int | float | list[int | float] = Field(description="a number, or the two ends of a range")
    unit: str = Field(min_length=1, description="such as tok/s, s, GB, tokens")
    when: str = Field("", description="conditions")
    source: str = Field(min_length=8, description="URL or title of the source")
    approximate: bool = Field(False, description="whether the source calls it approximate")


def verifying(verify: Verify, request: Request, args: Mapping[str, Any]) -> Verify:
    """What a model is verified with: ``verify``, and what clients are told in ``request`` where it says nothing.

    Reasoning is off where ``request`` or ``args`` names its switch. Else at least ``REASONING_TOKENS`` are allowed if a
    parser takes it out of the answer.
    """
    default = args.get("default-chat-template-kwargs")
    named = {*request.chat_template_kwargs, *(default if isinstance(default, dict) else ())}
    off = dict.fromkeys(named & set(SWITCHES), False)
    options = {**request.chat_template_kwargs, **off, **verify.chat_template_kwargs}
    sampled = {"temperature": 0.0, **request.body, **verify.body, "chat_template_kwargs": options}
    sampled["max_tokens"] = verify.max_tokens
    sampled["kind"] = verify.kind or _kind(args)
    if "reasoning-parser" in args and all(options.get(name) is not False for name in SWITCHES):
        sampled["max_tokens"] = max(verify.max_tokens, REASONING_TOKENS)
    return verify.model_copy(update=sampled)


def _kind(args: Mapping[str, Any]) -> Kind:
    """What the engine's arguments say of what a model is for: ``runner``, and ``task`` of older versions."""
    overrides = args.get("hf-overrides")
    classes = overrides.get("architectures") if isinstance(overrides, dict) else None
    scores = args.get("task") == "score" or args.get("convert") == "classify"
    if scores or str(classes).endswith("ForSequenceClassification']"):
        return "rerank"
    embeds = args.get("runner") == "pooling" or args.get("task") in {"embed", "embedding"}
    return "embeddings" if embeds or args.get("convert") == "embed" else "chat"


class Allow(Section):
    """A finding that this playbook accepts, and why."""

    code: FindingCode = Field(description="code of the finding, such as MODEL-012")
    reason: str = Field(min_length=8, description="why it is acceptable")


class Build(Section):
    """An image that a node builds, on ``image`` and of a directory beside the playbook; it is copied to the others."""

    context: BesidePath = Field(description="directory beside the playbook, with all that the build needs")
    dockerfile: Name = Field("Dockerfile", description="file in it, for `ARG BASE` and `FROM $BASE`")
    script: Name | None = Field(None, description="shell script in it instead, which is run in the image")
    timeout_s: float = Field(3600, gt=0, le=86_400, description="timeout of the build, in seconds")

    @model_validator(mode="after")
    def _one_file(self) -> Build:
        if self.script is not None and "dockerfile" in self.model_fields_set:
            raise ValueError("script cannot be combined with dockerfile, which would run it", "keep one of them")
        return self


class Container(Section):
    """Docker options in addition to those of every rank."""

    cap_add: list[Capability] = Field([], description="Linux capabilities, such as SYS_NICE")
    devices: list[Device] = Field([], description="device files beside GPUs and RDMA, such as /dev/gdrdrv")
    ulimits: dict[Ulimit, Annotated[int, Field(ge=-1)]] = Field(
        {},
        description="limits, soft and hard, such as nofile: 65536; -1: none. Default: memlock -1, stack 64 MiB, "
        "nofile 1048576",
    )
    user: User | None = Field(None, description='user of the ranks, such as "1000:1000"; default: the image\'s')

    @model_validator(mode="after")
    def _of_root(self) -> Container:
        if self.cap_add and self.user is not None and not is_root(self.user):
            message = f"cap_add has no effect for user {self.user}: Docker gives capabilities to root alone"
            raise ValueError(message, "remove cap_add or user")
        return self


class Nodes(Section):
    """On how many nodes a group may serve it."""

    min: int = Field(1, ge=1, description="fewest nodes of a group")
    max: int | None = Field(None, ge=1, description="most nodes of a group; default: no limit")

    @model_validator(mode="after")
    def _ordered(self) -> Nodes:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max {self.max} is below min {self.min}")
        return self

    def allow(self, nodes: int) -> bool:
        """Whether a group of ``nodes`` may serve it."""
        return self.min <= nodes and (self.max is None or nodes <= self.max)


class Playbook(Section):
    """What the cluster serves."""

    name: Name = Field(description="name of the playbook, the same as its file's")
    extends: str | None = Field(None, min_length=1, max_length=1024, description="playbook to extend, by name or path")
    overlays: list[Name] = Field([], description="overlays that it allows, as in `playbook: NAME+OVERLAY`")
    description: str = Field("", description="one line on what it serves and the source of its figures")
    use: str = Field("", max_length=20, description="what it is good for, in a few words, as `playbooks` lists it")
    purposes: list[Name] = Field([], description="words by which `playbooks --for` finds it, such as coding")
    source: list[str] = Field([], description="sources of the recipe: URLs or titles")
    goal: Literal["speed", "memory"] = Field(
        "speed", description="what its arguments are optimized for; memory: leaves memory to other programs"
    )
    figures: list[Figure] = Field([], description="measured and published figures")
    request: Request = Field(default_factory=Request, description="recommended request parameters")
    model: Model = Field(description="the weights")
    image: Image | None = Field(None, description="container image, by tag or digest; not needed with runtime process")
    build: Build | None = Field(None, description="makes the image that runs of this one, on a node")
    engine: str = Field(engines.DEFAULT, description="inference engine: a directory of sparkcluster/engines")
    served_name: ServedName | None = Field(None, description="the model's name in the API; default: id or directory")
    aliases: list[ServedName] = Field([], max_length=16, description="further names of the model in the API")
    nodes: Nodes = Field(default_factory=Nodes, description="on how many nodes a group may serve it")
    variants: dict[VariantKey, dict[str, Any]] = Field({}, description="other keys by number of nodes: 2, 2-4, 2+")
    tensor_parallel: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="tensor parallel size; auto: nodes of the group / pipeline_parallel"
    )
    pipeline_parallel: int = Field(1, ge=1, description="pipeline stages")
    executor: Executor = Field(
        "auto",
        description="ray, which is staged if the image lacks it; native, the engine's multi-node backend; "
        "or auto: ray if it is available",
    )
    args: dict[str, ArgumentValue] = Field({}, description="engine flags, without leading dashes")
    env: dict[EnvName, str] = Field({}, description="environment of every rank, in addition to the plan's")
    secrets: list[EnvName] = Field([], description="variables from the controller's environment, never shown")
    mounts: list[Mount] = Field([], description="further directories and files of the node in the container")
    setup: list[str] = Field([], description="shell lines run in the container before the engine")
    command: list[str] | None = Field(None, min_length=1, description="complete command, in place of args")
    caches: list[Cache] | None = Field(None, description="kept between containers of an image; default: the engine's")
    container: Container = Field(default_factory=Container, description="further options of the container")
    verify: Verify = Field(default_factory=Verify, description="the completion that verifies the endpoint")
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
        """Pipeline and data parallel parts, each of as many ranks as the tensor parallel size."""
        data = self.args.get("data-parallel-size", 1)
        return self.pipeline_parallel * (data if isinstance(data, int) and data > 0 else 1)

    @property
    def ranks(self) -> int | None:
        """Ranks of a group; None where the number of its nodes decides."""
        return None if self.tensor_parallel == "auto" else self.tensor_parallel * self.parts

    def serves_on(self, nodes: int) -> bool:
        """Whether its ranks come out at a group of so many nodes, and ``nodes`` allows them."""
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
        """What the engine loads from the Hugging Face cache beside the model."""
        named = engines.engine(self.engine).repositories(self)
        return [Companion(id=name, revision=revision) for name, revision in named.items() if name != self.model.id]

    @property
    def choice(self) -> dict[str, Any]:
        """Which files of the model are served, as ``node.model_choice`` takes it."""
        loads = engines.engine(self.engine).weights_format(self)
        series = [re.sub(r"-\d{5}-of-", "-*-of-", self.model.file)] if self.model.file else []
        return {"include": [*series, *self.model.files], "exclude": self.model.exclude, "format": loads}

    @property
    def verifying(self) -> Verify:
        """What it is verified with."""
        return verifying(self.verify, self.request, self.args)

    @property
    def chats(self) -> bool:
        """Whether the model writes text, and does not compare texts."""
        return (self.verify.kind or _kind(self.args)) == "chat"

    @property
    def model_name(self) -> str:
        """Name of the model in the API."""
        return self.served_name or self.model.id or str(self.model.path).rstrip("/").rsplit("/", 1)[-1]
