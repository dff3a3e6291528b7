"""A group's API as a client of the user reaches it: address, model, key, and what the engine offers. Pure."""

from __future__ import annotations

import dataclasses

from sparkcluster.endpoint.find import loopback
from sparkcluster.engines.base import ApiFeatures
from sparkcluster.printable import shell, word
from sparkcluster.spec.playbook import Kind, Request

PASTE = "PASTE-THE-API-KEY"
# Hermes Agent refuses less (https://github.com/NousResearch/hermes-agent/issues/53347), and Ollama recommends as much
# for Claude Code (https://ollama.com/blog/claude): the prompt and the tools of an agent alone take some 25,000.
AGENT_CONTEXT = 64_000


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """Where the user has the API key.

    Attributes:
        env: variable that holds it; None where a file does.
        file: file that holds it, as the inventory names it.
        value: the key itself, where it is to be shown.
    """

    env: str | None = None
    file: str | None = None
    value: str | None = None

    @property
    def command(self) -> str:
        """Shell command that prints it."""
        return f"printenv {self.env}" if self.env else shell("cat", self.file or "")

    @property
    def expansion(self) -> str:
        """What a shell replaces by it, within double quotes."""
        return f"${self.env}" if self.env else f"$({self.command})"

    @property
    def word(self) -> str:
        """A word of a shell line that is the key."""
        return word(self.value) if self.value else f'"{self.expansion}"'

    @property
    def text(self) -> str:
        """What stands for it in a file that no shell reads."""
        return self.value or PASTE


@dataclasses.dataclass(frozen=True, slots=True)
class Connection:
    """What a client has to know.

    Attributes:
        cluster: name of the cluster.
        url: of the API, as the user's machine reaches it; ends in ``/v1``.
        model: name that requests carry.
        aliases: its other names.
        key: None where the API requires none.
        features: what the engine offers.
        tunnel: command that has to run while the API is used, where the user's machine reaches it in no other way.
        known: whether the address in ``url`` is; else it is a placeholder, since the nodes alone know it.
        others: URLs of further groups, where no tunnel is needed.
        request: what the playbook tells clients to send.
        kind: what the model is for.
        name: of its entry among the models of the inventory, as ``--model`` takes it; empty of a single one.
        siblings: the other models of the inventory; those for chat by size, the largest first.
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
    kind: Kind = "chat"
    name: str = ""
    siblings: tuple[Connection, ...] = ()

    def of_kind(self, kind: Kind) -> tuple[Connection, ...]:
        """Those for that, itself and its siblings."""
        return tuple(each for each in (self, *self.siblings) if each.kind == kind)

    @property
    def local(self) -> bool:
        """Whether the URL is one of the user's own machine."""
        return loopback(self.url)

    @property
    def root(self) -> str:
        """The URL without ``/v1``."""
        return self.url.removesuffix("/v1")

    @property
    def without_slash(self) -> str | None:
        """Its first name without a slash, which Claude Code does not take; None where it has none."""
        return next((name for name in (self.model, *self.aliases) if "/" not in name), None)

    @property
    def variable(self) -> str:
        """Name of a variable for the key in a client's configuration."""
        return (self.key and self.key.env) or "SPARK_API_KEY"

    @property
    def output(self) -> int | None:
        """Tokens that a client may ask for in one answer: a prompt that leaves fewer of the context is refused."""
        context, told = self.features.context, self.request.max_tokens or 1
        return None if context is None else max(1, min(16_384, context // 4), min(told, context // 2))


def curl(connection: Connection, path: str = "/models") -> str:
    """A command that asks the API for the models that it serves; the shell reads the key, which is not in the text."""
    header = f'-H "Authorization: Bearer {connection.key.expansion}" ' if connection.key else ""
    return f"curl {header}{word(connection.url + path)}"
