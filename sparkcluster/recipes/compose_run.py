"""``docker compose run``, whose Compose file the same text contains, as the ``docker run`` that starts the same.

After https://docs.docker.com/reference/cli/docker/compose/run
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from sparkcluster.errors import UsageError
from sparkcluster.recipes import compose_service
from sparkcluster.recipes.compose_node import Node
from sparkcluster.recipes.shell import shown
from sparkcluster.spec.document import parse as parse_yaml

FILES = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")
"""Names by which Compose finds its file, in its order."""

_OF_COMPOSE = frozenset(
    {"-f", "--file", "-p", "--project-name", "--profile", "--env-file", "--project-directory", "--ansi", "--progress",
     "--parallel"}
)  # fmt: skip
# Options of `run` with a value, and the option of `docker run` that they are.
_OF_RUN = {
    "--cap-add": "--cap-add", "--cap-drop": "--cap-drop", "-e": "--env", "--env": "--env", "--entrypoint": "",
    "--env-from-file": "--env-file", "-l": "--label", "--label": "--label", "--name": "--name", "-p": "--publish",
    "--publish": "--publish", "--pull": "--pull", "-u": "--user", "--user": "--user", "-v": "--volume",
    "--volume": "--volume", "-w": "--workdir", "--workdir": "--workdir",
}  # fmt: skip


def is_compose(words: list[str]) -> bool:
    """Whether a command is one of Compose."""
    return words[:1] == ["docker-compose"] or words[:2] == ["docker", "compose"]


def changes(words: list[str], env: Mapping[str, str | None]) -> bool:
    """Whether a command of Compose with ``env`` in front starts something else than its file alone says."""
    given, rest = _options(words[1 if words[0] == "docker-compose" else 2 :], _OF_COMPOSE)
    if rest[:1] not in (["up"], ["create"], ["run"]):
        return False
    flags = {flag for flag, _ in given} | {word.partition("=")[0] for word in rest[1:]}
    return rest[0] == "run" or bool(env) or bool(flags & {"-f", "--file", "--profile", "--env-file", "--scale"})


def as_docker_run(
    words: list[str], files: Mapping[str, str | None], variable: Callable[[str], str | None]
) -> tuple[list[str], list[str], str] | None:
    """The words after ``docker run``, notes, and the name of the file; None if it is not among ``files``.

    Raises:
        UsageError: the file has no such service, or it is broken.
    """
    given, rest = _options(words[1 if words[0] == "docker-compose" else 2 :], _OF_COMPOSE)
    if rest[:1] != ["run"]:
        return None
    named = [value for flag, value in given if flag in {"-f", "--file"}]
    name = next((each for each in named or FILES if each.removeprefix("./") in files), None)
    text = None if name is None else files[name.removeprefix("./")]
    if name is None or text is None or len(named) > 1:
        return None
    options, operands = _options(rest[1:], frozenset(_OF_RUN))
    service, notes = _service(text, name, operands, variable)
    notes += [f"{flag} {shown(value)}: not read" for flag, value in given if flag == "--env-file"]
    service.options.pop("container_name", None)
    service.options.pop("ports", None)
    entrypoint = next((value for flag, value in reversed(options) if flag == "--entrypoint"), None)
    if entrypoint is not None:
        service.entrypoint, service.command = shlex.split(entrypoint), []
    service.command = operands[1:] or service.command
    out = service.arguments()
    at = out.index("--")
    more = [word for flag, value in options if _OF_RUN.get(flag) for word in (_OF_RUN[flag], value)]
    return [*out[:at], *more, *out[at:]], [*notes, *service.notes], name.removeprefix("./")


def _options(words: list[str], valued: frozenset[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Options in front of the operands, with their values, and the operands."""
    out: list[tuple[str, str]] = []
    at = 0
    while at < len(words) and words[at].startswith("-"):
        flag, equals, value = words[at].partition("=")
        at += 1
        if flag in valued and not equals:
            value, at = "".join(words[at : at + 1]), at + 1
        elif flag[:2] in valued and not flag.startswith("--"):
            flag, value = flag[:2], words[at - 1][2:]
        out.append((flag, value))
    return out, words[at:]


def _service(
    text: str, source: str, operands: list[str], variable: Callable[[str], str | None]
) -> tuple[compose_service.Service, list[str]]:
    document = parse_yaml(text, source, merge_keys=True)
    services = Node(document, (), document.data, variable).entries().get("services")
    entries = {} if services is None else services.entries()
    if not operands or operands[0] not in entries:
        names = ", ".join(map(shown, entries)) or "none"
        raise UsageError(
            f"{source} has no service {shown(' '.join(operands[:1]))}, which docker compose runs",
            hint=f"its services are {names}",
        )
    others = [f"the service {shown(name)}" for name in entries if name != operands[0]]
    return compose_service.read(operands[0], entries), others
