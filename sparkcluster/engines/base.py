"""The interface to an inference engine, which every directory of ``engines/`` implements.

A directory ``engines/NAME`` is a package with ``ENGINE``, an instance of a subclass of ``Engine``. It may have a
``node.py``, whose source is sent to the nodes instead of ``sparkcluster.node.engine``. Only the directory itself
imports its modules, and its ``__init__`` none of them before they are used, since every command imports it.
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

# What the interface passes on belongs to rooms that import this one, so it is only named here.
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
        python: interpreter that has the engine, where it is a process on the node; None in a container.
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
    """A file beside the model that the engine downloads when it starts, unless it finds it.

    Attributes:
        variable: names the directory in which the engine looks for it.
        others: further variables by which an image says that it has it.
    """

    name: str
    url: str
    sha256: str
    size_bytes: int
    variable: str
    others: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ApiFeatures:
    """What a client of the API can rely on, by the playbook alone.

    Attributes:
        context: tokens of prompt and answer together; None where the playbook leaves them to the model or to memory.
        tools: whether the model may choose to call the tools that a request offers; None where it is not known.
        reasoning: whether reasoning is streamed apart from the answer; None where it is not known, or there is none.
        messages: whether it serves Anthropic's Messages API; None where it is not known.
        requests: that it runs at once at most; None where the playbook leaves them to the engine.
        remedies: by the name of one of these, what to write in the playbook, or what to look at, where it fails.
    """

    context: int | None = None
    tools: bool | None = None
    reasoning: bool | None = None
    messages: bool | None = None
    requests: int | None = None
    remedies: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Imported:
    """A member of an engine that another module defines, which is imported when the member is first used."""

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __get__(self, engine: Engine | None, owner: type[Engine]) -> Any:
        if engine is None:
            return self
        return operator.attrgetter(self.name)(importlib.import_module(self.module, owner.__module__))


def imported(module: str, name: str) -> Any:
    """The member ``name`` of a module; ``.flags`` is that of the engine's own directory."""
    return Imported(module, name)


class Engine(abc.ABC):
    """An inference engine; what has a default is optional.

    Attributes:
        name: as in ``engine:`` of a playbook.
        title: as its makers write it.
        api_key: environment variable that it reads its API key from; None where it takes none.
        executors: how its ranks can meet, when a group has several nodes.
        alone: why they cannot, where they have no means that is safe.
        arguments: names of arguments that follow from other keys, and which key sets each.
        short_arguments: short forms of arguments, and what to write in their place.
        variables: environment variables that follow from other keys, and which key sets each.
        per_node: environment variables whose value differs between nodes.
        caches: directories kept from one container to the next: name and path in the container.
        images: repositories of its images from known publishers; ``up`` asks about any other.
        api_flags: flags of its command line for the API: host, port, and model, the name of the model.
        counters: its metrics by what they count (generated, prompted, running, waiting, kv_cache, and others
            that move while it works); the first that it has is used.
        statistics: likewise, what bench and telemetry read beside them, since its start: hits and queries of the prefix
            cache (tokens), drafts, drafted and accepted (tokens), preemptions; ttft and itl, the time between tokens
            (buckets of a histogram, seconds), and ttft_sum and itl_sum of each.
        ready: text of the log line that is printed once the API has started.
        dead: regular expression of log lines of an engine that has died behind its API.
        stalled: regular expression of the line that ranks repeat while they wait for one that compiles.
        memory_hint: what to do where memory ran out.
        checks: modules with checks for playbooks of this engine only.
        importer: how its commands and recipes are read; None where ``sparkcluster import`` reads none of them.
        reports: who among its users and makers reported what a check of every engine finds, by the code of the check.
        phases: lines of its log that show how far a launch is, in the order of the phases; see ``signature.Step``.
        footprint: log lines that say what memory a rank takes; its groups are keys of ``phase.FOOTPRINT``.
        signatures: log lines of known causes: root causes before their consequences.
        culprits: log lines that name the rank that failed (groups ``rank`` or ``address``), the most specific first.
    """

    name: str
    title: str
    api_key: str | None = None
    executors: frozenset[Executor] = frozenset()
    alone: str = ""
    arguments: Mapping[str, str] = {}
    short_arguments: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}
    per_node: frozenset[str] = frozenset()
    caches: Mapping[str, str] = {}
    images: frozenset[str] = frozenset()
    api_flags: Mapping[str, str] = {"host": "--host", "port": "--port", "model": "--served-model-name"}
    counters: Mapping[str, Sequence[str]] = {}
    statistics: Mapping[str, Sequence[str]] = {}
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

        A Ray worker gets only the program, by which the launcher finds the Python that has Ray.
        """

    def environment(self, member: Member, playbook: Playbook) -> dict[str, str]:
        """Variables for this engine of the rank on ``member``; the playbook's ``env`` overrides them.

        Its own limits must not cut short the playbook's ``ready_timeout_s``, from the start to the first answer.
        """
        return {}

    def planned(self, spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> Spec:
        """``spec`` with the arguments that the engine computes from the facts.

        Raises:
            PlanError: they cannot be computed.
        """
        return spec

    def drain_s(self, playbook: Playbook) -> int:
        """Seconds that it lets requests in flight finish after SIGTERM, by a playbook from ``planned``."""
        return 0

    def repositories(self, playbook: Playbook) -> Mapping[str, str]:
        """Repositories of the Hugging Face hub that the arguments name beside the model, with their revisions.

        They are staged as the model is, and are all that the engine sees of the node's cache.
        """
        return {}

    def vocabularies(self, playbook: Playbook) -> Sequence[Vocabulary]:
        """Files that it would download from elsewhere than the hub when it starts; they are staged."""
        return ()

    def weights_format(self, playbook: Playbook) -> str | None:
        """Which weights it loads where a repository has several.

        ``gguf``: the one file that ``model.file`` names; ``mistral``, ``any``, or None: safetensors first.
        """
        return None

    def memory_share(self, playbook: Playbook, *facts: Facts) -> float:
        """The share of the node's memory that it allocates when it starts; ``facts`` of nodes that run it help."""
        return 0.0

    def takes_share(self, playbook: Playbook) -> bool:
        """Whether it takes ``memory_share``: not where that is left to us, or said in another way."""
        return False

    def beside_others(self, playbook: Playbook, chosen: Collection[str] = ()) -> Playbook:
        """``playbook`` as it is served beside other models: it takes what its model needs.

        ``chosen`` are keys of it that the inventory sets, and that stay.
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
            playbook: what to serve.
            model: its configuration, and its tensors where they are known.
            machine: memory of each node.
            nodes: how many share the model.
            context: tokens of a request, in place of the playbook's.
            requests: of full context at once; None for those that the engine makes room for, where that is left to us.
            beside: those of ``repositories`` whose tensors are known, by name.

        Raises:
            UsageError: the model is not known, or cannot be served so.
        """
        return None

    def baseline(self, model: Source) -> tuple[dict[str, Any], list[str]] | None:
        """Keys of a playbook that ``model`` can be started with where no recipe of it is known, and what to look at.

        All but its ``name`` and ``model.id`` or ``model.path``; None if the engine has no such playbook.

        Raises:
            UsageError: the model is not known.
        """
        return None

    def api_features(self, playbook: Playbook) -> ApiFeatures:
        """What clients of the API that ``playbook`` starts can rely on."""
        return ApiFeatures()

    def known_arguments(self) -> Collection[str]:
        """Names of all its arguments, as far as they are known: a playbook may not abbreviate them."""
        return ()

    def tuning_arguments(self) -> Mapping[str, frozenset[str]]:
        """Arguments that only set how it computes, with the keys that documents in their values may have.

        ``up`` asks about any other, and about values that are neither numbers nor words.
        """
        return {}

    def tuning_variables(self) -> frozenset[str]:
        """Its variables that only set how it computes; ``up`` asks about any other."""
        return frozenset()

    def gone_argument(self, name: str) -> str | None:
        """What to write instead of an argument that newer releases do not have, if known."""
        return None

    def garbage_remedy(self, playbook: Playbook, lines: Sequence[str]) -> str | None:
        """What to do first if the output is garbage, by the log of the group; None if the arguments are no suspect."""
        return None
