"""What ``docker inspect`` says of a container on a machine, with the processes in it: the text that is imported."""

from __future__ import annotations

import json
import re
from typing import Any

from sparkcluster import engines
from sparkcluster.errors import UsageError
from sparkcluster.facts.base import Fact
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.program import call

_SHOWN = 10


class Answer(Fact):
    """Documents of the container, else the names of those that run, or why Docker cannot be asked."""

    documents: list[Any] | None = None
    names: tuple[str, ...] = ()
    unread: str | None = None


def inspected(host: Host, name: str) -> str:
    """The documents of the container ``name`` as JSON; nothing is changed.

    Raises:
        UsageError: it has no such container, or its Docker engine cannot be asked.
        HostError: it could not be reached or queried.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", name):
        raise UsageError(f"not the name of a container: {name[:60]!r}", hint="docker ps   lists the containers")
    importers = [found for each in engines.names() if (found := engines.engine(each).importer) is not None]
    request = {"name": name, "engines": [each.COMMAND.split()[0] for each in importers]}
    answer = call(host, "inspected", request, answer=Answer, timeout_s=60, task="import")
    if answer.documents is not None:
        return json.dumps(answer.documents)
    if answer.unread is None:
        names = [*answer.names[:_SHOWN], *(["…"] if len(answer.names) > _SHOWN else [])]
        hint = f"these run there: {', '.join(names)}" if names else "no container runs there"
        raise UsageError(f"{host.name} has no container {name}", hint=hint)
    hint = "sudo systemctl status docker"
    if "permission denied" in answer.unread:
        hint = f"sudo usermod -aG docker {host.user}   on {host.name}, and log in again"
    raise UsageError(f"cannot query Docker on {host.name}: {answer.unread}", hint=hint)
