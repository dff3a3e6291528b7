"""The interface to an inference engine, implemented by every directory of ``engines/``.

A directory ``engines/NAME`` is a package with ``ENGINE``, an instance of a subclass of ``Engine``.

- ``name = "NAME"`` is a line of ``__init__.py``, indented by four spaces: ``engines.named`` reads it as text.
- Most commands import the ``__init__`` of the playbook's engine; ``import`` and ``checks`` import
  the ``__init__`` of every engine. ``__init__`` therefore imports the directory's other modules on first use
  (``imported``). No other directory imports them.
- ``node.py``, if any, is sent to the nodes instead of ``sparkcluster.node.engine``, and defines the same names.
- ``importer``, if any, is a ``sparkcluster.importer.commands.Importer``.

Steps to add an engine: docs/internals/adding.md.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib
import operator
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from sparkcluster.engines.signature import Signature, Step
    from sparkcluster.fit.source import Machine, Source

Executor = Literal["none", "ray", "native"]
"""What joins the ranks of a group."""

ModelKind = Literal["chat", "embeddings", "rerank"]
"""The use of a model, and the kind of request that verifies it."""

# These types belong to packages that import this one, so they are only named here.
Facts: TypeAlias = Any
Group: TypeAlias = Any
Importer: TypeAlias = Any
Member: TypeAlias = Any
Playbook: TypeAlias = Any
Spec: TypeAlias = Any
Topology: TypeAlias = Any


@dataclasses.dataclass(frozen=True, slots=True)
class Rank:
    """The rank that a command line is built for.

    Attributes:
        member: its node.
        model: repository or directory, as the engine sees it.
        executor: what joins the ranks.
        python: interpreter that has the engine, if it runs as a process on the node; None in a container.
    """

    playbook: Playbook
    group: Group
    member: Member
    tensor_parallel: int
    model: str
    executor: Executor
    python: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Vocabulary:
    """A companion file that the engine downloads when it starts, unless it finds a local copy.

    Attributes:
        variable: environment variable with the directory in which the engine looks for it.
        others: further variables that mean that an image contains it.
    """

    name: str
    url: str
    sha256: str
    size_bytes: int
    variable: str
    others: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ApiFeatures:
    """What a client of the API can rely on, according to the playbook.

    Attributes:
        context: tokens of prompt and answer together; None if the playbook does not set them.
        tools: whether the model may choose to call the tools that a request offers; None if unknown.
        reasoning: whether reasoning is streamed separately from the answer; None if unknown, or without reasoning.
        messages: whether it serves Anthropic's Messages API; None if unknown.
        requests: highest number of concurrent requests; None if the playbook does not set it.
        remedies: by the name of an attribute above, what to write in the playbook, or what to check, if it fails.
    """

    context: int | None = None
    tools: bool | None = None
    reasoning: bool | None = None
    messages: bool | None = None
    requests: int | None = None
    remedies: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Imported:
    """A member of an engine that another module defines; the module is imported on first use."""

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __get__(self, engine: Engine | None, owner: type[Engine]) -> Any:
        if engine is None:
            return self
        return operator.attrgetter(self.name)(importlib.import_module(self.module, owner.__module__))


def imported(module: str, name: str) -> Any:
    """The member ``name`` of a module; ``.flags`` is a module of the engine's own directory."""
    return Imported(module, name)


class Engine(abc.ABC):
    """An inference engine; members with a default are optional.

    Attributes:
        name: as in ``engine:`` of a playbook: ``"llama.cpp"``.
        title: as its makers write it: ``"TensorRT-LLM"``.
        api_key: environment variable with its API key: ``"SGLANG_API_KEY"``; None if it has none.
        key_separator: separator of several keys in that variable: ``","``; keys may not contain it. None if it takes
            one key.
        executors: ways to join its ranks when a group has several nodes: ``{"ray", "native"}``.
        alone: the reason if its ranks cannot be joined safely: ``"its rpc-server has no authentication"``. Empty if
            they can.
        arguments: arguments that a playbook may not set, and the key that sets each: ``{"host": "api.host"}``.
        common_arguments: its arguments by purpose: ``{"context": "ctx-size"}``. Purposes: see below.
        judges_arguments: True if the engine's directory has a check of unknown arguments; the common check is skipped.
        short_arguments: short forms of arguments, and what to write instead: ``{"dp": "dp-size"}``.
        variables: environment variables that a playbook may not set, and what to write instead:
            ``{"LLAMA_API_KEY": "write api.key in the inventory"}``.
        per_node: environment variables whose value differs between nodes: ``{"SGLANG_HOST_IP"}``.
        caches: directories kept across containers: ``{"triton": "/root/.triton"}``, name and path in the container.
        images: repositories of its images from known publishers: ``{"lmsysorg/sglang"}``; ``up`` asks about any other.
        api_flags: its flags for the address of the API (host, port), and for the name of the model (model).
        counters: names of its metrics by what they count: ``{"running": ("llamacpp:requests_processing",)}``; see
            below.
        statistics: names of further metrics, for bench and telemetry; see below.
        tokenize_field: field with the text in /tokenize and /detokenize: ``"content"``; None if the weights have a
            tokenizer.json.
        ready: text of the log line that is printed once the API has started: ``"listening on http"``.
        dead: regular expression of log lines of an engine that died while its API still answers.
        stalled: regular expression of the line that ranks repeat while they wait for a rank that compiles.
        memory_hint: what to do if memory ran out: ``"lower ctx-size in the playbook"``.
        checks: names of modules with checks for playbooks of this engine only:
            ``("sparkcluster.engines.sglang.checks",)``.
        importer: reads its commands and recipes; None if ``sparkcluster import`` does not support it.
        reports: public reports that confirm a common check for this engine: ``{"HOST-010": "deadlock: URL"}``, by the
            code of the check; the page of the check lists them as sources.
        phases: log lines that show the progress of a launch, in the order of the phases; see ``signature.Step``.
        footprint: log lines with the memory of a rank; its groups are keys of ``phase.FOOTPRINT``.
        signatures: log lines of known causes: root causes before their consequences.
        culprits: log lines that name the rank that failed (groups ``rank`` or ``address``), the most specific first.

    Purposes of ``common_arguments``:

    - ``context``: tokens of prompt and answer
    - ``requests``: concurrent requests
    - ``memory``: share of the memory
    - ``kv_type``, ``kv_bytes``: type and size of the KV cache
    - ``batch``: tokens of a batch
    - ``no_graphs``: true for no CUDA graphs

    ``counters`` and ``statistics`` map a name to metrics; the first metric that the engine exports is used.
    ``metric{label="value"}`` counts only series with that label.

    Names in ``counters``; others are allowed, for metrics that change while the engine works:

    - ``generated``, ``prompted``: tokens since the start
    - ``running``, ``waiting``: requests now
    - ``kv_cache``: used share of the KV cache

    Names in ``statistics``, counted since the start:

    - ``hits``, ``queries``: of the prefix cache, in tokens
    - ``drafts``; ``drafted``, ``accepted``: in tokens
    - ``preemptions``
    - ``ttft``, ``itl``: time to the first token, and between tokens: buckets of a histogram, in seconds
    - ``ttft_sum``, ``itl_sum``: sums of the histograms

    Methods about memory, in the order in which they see a playbook:

    1. ``beside_others``, when the inventory is loaded, if models share nodes. All later methods get its result.
    2. ``forecast``, for ``fit``, the checks of memory and the sum of all models of a node. If it returns None or fails,
       ``takes_share`` and ``memory_share`` give an upper bound.
    3. ``planned``, when the plan is built: replaces values such as ``auto`` by numbers. A check of free memory calls it
       too.
    4. ``memory_share``, on the result of ``planned``, in that check: compared with the free memory of a node.
    5. ``takes_share`` and ``memory_share``, when ranks start: whether the weights are dropped from the page cache.
    """

    name: str
    title: str
    api_key: str | None = None
    key_separator: str | None = None
    executors: frozenset[Executor] = frozenset()
    alone: str = ""
    arguments: Mapping[str, str] = {}
    common_arguments: Mapping[str, str] = {}
    judges_arguments: bool = False
    short_arguments: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}
    per_node: frozenset[str] = frozenset()
    caches: Mapping[str, str] = {}
    images: frozenset[str] = frozenset()
    api_flags: Mapping[str, str] = {"host": "--host", "port": "--port", "model": "--served-model-name"}
    counters: Mapping[str, Sequence[str]] = {}
    statistics: Mapping[str, Sequence[str]] = {}
    tokenize_field: str | None = None
    ready: str | None = None
    dead: str | None = None
    stalled: str | None = None
    memory_hint = "free the page cache: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"
    checks: Sequence[str] = ()
    importer: Importer | None = None
    reports: Mapping[str, str] = {}
    phases: Sequence[Step] = ()
    footprint: re.Pattern[str] | None = None
    signatures: Sequence[Signature] = imported("sparkcluster.engines.common_signatures", "COMMON")
    culprits: Sequence[re.Pattern[str]] = ()

    @abc.abstractmethod
    def serve(self, rank: Rank) -> list[str]:
        """Command that serves the model on ``rank``; its first word is the engine's program.

        A Ray worker gets only the program; the launcher uses it to find the Python that has Ray.
        """

    def environment(self, member: Member, playbook: Playbook) -> dict[str, str]:
        """Environment variables of the rank on ``member``; the playbook's ``env`` overrides them.

        The engine's own timeouts must not be shorter than the playbook's ``ready_timeout_s``.
        """
        return {}

    def planned(self, spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> Spec:
        """``spec`` with the arguments that the engine computes from the facts.

        Raises:
            PlanError: an argument cannot be computed.
        """
        return spec

    def kind(self, args: Mapping[str, Any]) -> ModelKind:
        """The use of the model, by the arguments of a playbook; the playbook's ``verify.kind`` takes precedence."""
        return "chat"

    def drain_s(self, playbook: Playbook) -> int:
        """Seconds that requests in flight get to finish after SIGTERM; ``playbook`` comes from ``planned``."""
        return 0

    def repositories(self, playbook: Playbook) -> Mapping[str, str]:
        """Companion repositories of the Hugging Face hub that the arguments name, with their revisions.

        They are staged like the model. The engine sees nothing else of the node's cache.
        """
        return {}

    def vocabularies(self, playbook: Playbook) -> Sequence[Vocabulary]:
        """Files that the engine would download from outside the hub when it starts; they are staged."""
        return ()

    def weights_format(self, playbook: Playbook) -> str | None:
        """The format of weights that it loads if a repository has several.

        ``gguf``: the file that ``model.file`` names; ``mistral``, ``any``, or None: safetensors first.
        """
        return None

    def memory_share(self, playbook: Playbook, *facts: Facts) -> float:
        """The share of the node's memory that it allocates when it starts; ``facts`` may have its version."""
        return 0.0

    def takes_share(self, playbook: Playbook) -> bool:
        """Whether it allocates ``memory_share``: not if sparkcluster computes it, or another argument sets it."""
        return False

    def beside_others(self, playbook: Playbook, chosen: Collection[str] = ()) -> Playbook:
        """``playbook`` for a node with other models: it allocates only what its model needs.

        ``chosen`` are its keys that the inventory sets; they are not changed.
        """
        return playbook

    def forecast(
        self,
        playbook: Playbook,
        model: Source,
        machine: Machine,
        *,
        nodes: int = 1,
        context: int | None = None,
        requests: int | None = 1,
        beside: Mapping[str, Source] | None = None,
    ) -> dict[str, Any] | None:
        """How much memory the playbook needs on each of ``nodes``, as ``fit --json`` prints it; None if unknown.

        Args:
            playbook: the playbook to serve.
            model: its configuration, and its tensors if known.
            machine: memory of each node.
            nodes: number of nodes that share the model.
            context: tokens of a request; overrides the playbook.
            requests: concurrent requests of full context; None for the engine's default, if sparkcluster computes it.
            beside: companion repositories whose tensors are known, by name.

        Raises:
            UsageError: the model is unknown, or cannot be served like this.
        """
        return None

    def baseline(self, model: Source) -> tuple[dict[str, Any], list[str]] | None:
        """Keys of a playbook for a ``model`` without a known recipe, and notes on what to check.

        All keys but ``name`` and ``model.id`` or ``model.path``; None if the engine has no baseline.

        Raises:
            UsageError: the model is unknown.
        """
        return None

    def api_features(self, playbook: Playbook) -> ApiFeatures:
        """What clients of the API that ``playbook`` starts can rely on."""
        return ApiFeatures()

    def known_arguments(self) -> Collection[str]:
        """Names of all its arguments, or none: a playbook may not abbreviate them, nor use other engines' arguments."""
        return ()

    def tuning_arguments(self) -> Mapping[str, frozenset[str]]:
        """Arguments that only tune computation, with the keys that documents in their values may have.

        ``up`` asks about any other, and about values that are neither numbers nor words.
        """
        return {}

    def tuning_variables(self) -> frozenset[str]:
        """Its variables that only tune computation; ``up`` asks about any other."""
        return frozenset()

    def gone_argument(self, name: str) -> str | None:
        """What to write instead of an argument that newer releases removed, if known."""
        return None

    def garbage_remedy(self, playbook: Playbook, lines: Sequence[str]) -> str | None:
        """What to try first if the output is garbage, by the log of the group; None if the arguments are unlikely."""
        return None
