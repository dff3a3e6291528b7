"""A group's API as the user's clients reach it: address, model, key, and features of the engine. Pure."""

from __future__ import annotations

import dataclasses

from sparkcluster.endpoint.find import loopback
from sparkcluster.engines.base import ApiFeatures, ModelKind
from sparkcluster.printable import shell, word
from sparkcluster.spec.playbook import Request

PASTE = "PASTE-THE-API-KEY"
# Hermes Agent refuses less (https://github.com/NousResearch/hermes-agent/issues/53347), and Ollama recommends as much
# for Claude Code (https://ollama.com/blog/claude): the prompt and the tools of an agent alone take some 25,000.
AGENT_CONTEXT = 64_000


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """Where the user has the API key.

    Attributes:
        env: variable that holds it; None if a file does.
        file: file that holds it, as the inventory names it.
        value: the key itself, if it is to be shown.
    """

    env: str | None = None
    file: str | None = None
    value: str | None = None

    @property
    def command(self) -> str:
        """Shell command that prints the key."""
        return f"printenv {self.env}" if self.env else shell("cat", self.file or "")

    @property
    def expansion(self) -> str:
        """Shell expansion of the key, for use within double quotes."""
        return f"${self.env}" if self.env else f"$({self.command})"

    @property
    def word(self) -> str:
        """The key as a word of a shell line."""
        return word(self.value) if self.value else f'"{self.expansion}"'

    @property
    def text(self) -> str:
        """The key, or a placeholder, for a file that no shell reads."""
        return self.value or PASTE


@dataclasses.dataclass(frozen=True, slots=True)
class Connection:
    """The API as a client needs to know it.

    Attributes:
        cluster: name of the cluster.
        url: URL as the user's machine reaches it; ends in ``/v1``.
        model: the model's name in requests.
        aliases: its other names.
        key: None if the API needs none.
        features: features of the engine.
        tunnel: command of an SSH tunnel that must run meanwhile; None if the user's machine reaches the API directly.
        known: whether the address in ``url`` is known; else it is a placeholder, since only the nodes know it.
        others: URLs of further groups, if no tunnel is needed.
        request: request settings that the playbook recommends.
        kind: kind of the model.
        name: its name in the inventory, as for ``--model``; empty for a single model.
        siblings: the other models of the inventory; chat models by size, the largest first.
    """

    cluster: str
    url: str
    model: str
    aliases: tuple[str, ...] = ()
    key: Key | None = None
    features: ApiFeatures = dataclasses.field(default_factory=ApiFeatures)
    tunnel: str | None = None
    known: bool = True
    others: tuple[str, ...] = ()
    request: Request = dataclasses.field(default_factory=Request)
    kind: ModelKind = "chat"
    name: str = ""
    siblings: tuple[Connection, ...] = ()

    def of_kind(self, kind: ModelKind) -> tuple[Connection, ...]:
        """Itself and its siblings of that kind."""
        return tuple(each for each in (self, *self.siblings) if each.kind == kind)

    @property
    def local(self) -> bool:
        """Whether the URL is on the user's own machine."""
        return loopback(self.url)

    @property
    def root(self) -> str:
        """The URL without ``/v1``."""
        return self.url.removesuffix("/v1")

    @property
    def without_slash(self) -> str | None:
        """Its first name without a slash, which Claude Code does not accept; None if there is none."""
        return next((name for name in (self.model, *self.aliases) if "/" not in name), None)

    @property
    def variable(self) -> str:
        """Name of a variable for the key in a client's configuration."""
        return (self.key and self.key.env) or "SPARK_API_KEY"

    @property
    def output(self) -> int | None:
        """Tokens that a client may request for an answer, so that enough of the context is left for the prompt."""
        context, limit = self.features.context, self.request.max_tokens or 1
        return None if context is None else max(1, min(16_384, context // 4), min(limit, context // 2))


def curl(connection: Connection, path: str = "/models") -> str:
    """A command that lists the models of the API; the shell reads the key, which is not in the text."""
    header = f'-H "Authorization: Bearer {connection.key.expansion}" ' if connection.key else ""
    return f"curl {header}{word(connection.url + path)}"
