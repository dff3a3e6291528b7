"""The output of ``docker inspect`` for a container and its processes, as input of ``import``."""

from __future__ import annotations

import json
from typing import Any

from sparkcluster import engines
from sparkcluster.errors import UsageError
from sparkcluster.facts.base import Fact
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.program import call


class Answer(Fact):
    """Documents of the container, or else the names of running containers, or why Docker cannot be queried."""

    documents: list[Any] | None = None
    names: tuple[str, ...] = ()
    unread: str | None = None


def inspected(host: Host, name: str) -> str:
    """The documents of the container ``name`` as JSON; changes nothing.

    Raises:
        UsageError: there is no such container, or Docker cannot be queried.
        HostError: the node could not be reached or queried.
    """
    importers = [found for each in engines.names() if (found := engines.engine(each).importer) is not None]
    request = {"name": name, "engines": [each.COMMAND.split()[0] for each in importers]}
    answer = call(host, "inspected", request, answer=Answer, timeout_s=60, task="import")
    if answer.documents is not None:
        return json.dumps(answer.documents)
    if answer.unread is not None:
        raise UsageError(f"cannot query Docker on {host.name}: {answer.unread}", hint=f"on {host.name}: docker ps")
    hint = f"running containers: {', '.join(answer.names) or 'none'}"
    raise UsageError(f"{host.name} has no container {name}", hint=hint)
