"""Compose files: the service that starts an engine, as Compose would start it."""

from __future__ import annotations

import dataclasses
import re
import shlex

from sparkcluster.errors import NoEngine, SpecError, UsageError
from sparkcluster.recipes import compose_service, container
from sparkcluster.recipes.choices import Choices, Made
from sparkcluster.recipes.compose_node import Node
from sparkcluster.recipes.compose_service import Service
from sparkcluster.recipes.serve import Command, Importer, playbook
from sparkcluster.recipes.shell import Script, plain, shown, unknown
from sparkcluster.spec.document import parse as parse_yaml

CHOICE = "service"
"""What ``--define`` chooses a service by."""

MAX_LISTED = 20

_SERVICES = re.compile(r"^services[ \t]*:", re.MULTILINE)
# What a YAML file has at the beginning of its lines, and a script seldom.
_YAML_LINE = re.compile(r"[ \t#]|$|---|\.\.\.|-[ \t]|[}\]]|[\w.\"'-]+[ \t]*:([ \t]|$)")


@dataclasses.dataclass(frozen=True, slots=True)
class _Candidate:
    """A service, with what it starts or why it cannot be read.

    Attributes:
        service: as it is written; None if it is broken.
        made: container, command and reader of the engine; None if it starts none.
        error: why it cannot be read.
        is_engine: whether it starts an engine, or would if it could be read.
    """

    name: str
    service: Service | None = None
    made: tuple[container.Container, Command, Importer] | None = None
    error: UsageError | None = None
    is_engine: bool = False


def looks(text: str) -> bool:
    """Whether ``text`` is a Compose file: YAML with ``services:``."""
    found = _SERVICES.search(text)
    return found is not None and all(_YAML_LINE.match(line) for line in text[: found.start()].splitlines())


def read(text: str, source: str, importers: list[Importer], choices: Choices) -> Made:
    """The playbook of the service that starts an engine; the others are listed in the notes.

    Raises:
        NoEngine: no service starts one.
        UsageError: several do, or the service is broken.
        SpecError: the text is no YAML.
    """
    document = parse_yaml(text, source, merge_keys=True)
    # Compose refuses these as well; values on which YAML parsers disagree are refused where they count.
    twice = [problem for problem in document.problems if problem.message.startswith(("duplicate key", "a key"))]
    if twice:
        raise SpecError(twice)

    def variable(name: str) -> str | None:
        found = choices.ask(name)
        return "~" if found is None and name == "HOME" else found

    top = Node(document, (), document.data, variable).entries()
    if "services" not in top:
        raise UsageError(f"{source} has no services", hint="write services: at the beginning of a line")
    services = top["services"].entries()
    candidates = [_candidate(name, services, importers) for name in services]
    chosen = _chosen(candidates, source, choices.ask(CHOICE))
    if chosen.service is None or chosen.made is None:
        raise chosen.error or _no_engine(candidates, source)
    made, command, importer = chosen.made
    made.notes = [_by_key(note, chosen.service) for note in made.notes]
    try:
        out, notes = playbook(made, command, {}, importer)
    except UsageError as error:
        raise chosen.service.node.error(f"cannot be imported: {error.message}", error.hint) from None
    notes = [*notes, *chosen.service.notes]
    if chosen.service.builds:
        notes.append(f"build: build {shown(made.image)} on the first node")
    others = [other for other in candidates if other is not chosen]
    notes += [f"the service {_described(other)}" for other in others[:MAX_LISTED]]
    if len(others) > MAX_LISTED:
        notes.append(f"{len(others) - MAX_LISTED} more services")
    if "include" in top:
        notes.append("include: other files are not read")
    return out, notes


def _candidate(name: str, services: dict[str, Node], importers: list[Importer]) -> _Candidate:
    service: Service | None = None
    try:
        service = compose_service.read(name, services)
        made = container.read(service.arguments())
    except UsageError as error:
        return _Candidate(name, service, error=error, is_engine=_mentions(name, services, importers))
    script = Script(variables={key: value for key, value in made.env.items() if value is not None})
    for importer in importers:
        command = importer.by_variables(made) or Command.of(made, script, importer)
        if command is not None:
            return _Candidate(name, service, (made, command, importer), is_engine=True)
    unset = None
    if unknown(made.image):
        missing = unknown(made.image)[0]
        unset = UsageError(
            f"the image of the service {shown(name)} is {shown(made.image)}, which the text does not set",
            hint=f"add --define {missing}=…",
        )
    return _Candidate(name, service, error=unset, is_engine=unset is not None and _mentions(name, services, importers))


def _mentions(
    name: str, services: dict[str, Node], importers: list[Importer], extended: frozenset[str] = frozenset()
) -> bool:
    """Whether a service that cannot be read may be an engine's: its image or what it runs names one, or its base."""
    try:
        section = services[name].entries()
    except UsageError:
        return any(importer.ENGINE in str(services[name].value).lower() for importer in importers)
    written = " ".join(str(section[key].value) for key in ("image", "command", "entrypoint") if key in section).lower()
    if any(importer.ENGINE in written for importer in importers):
        return True
    base = section["extends"].value if "extends" in section else None
    base = base.get("service") if isinstance(base, dict) else base
    return base in services and base not in extended and _mentions(base, services, importers, extended | {base})


def _chosen(candidates: list[_Candidate], source: str, name: str | None) -> _Candidate:
    """The service to import.

    Raises:
        NoEngine: no service starts an engine.
        UsageError: the user has to choose.
    """
    engines = [candidate for candidate in candidates if candidate.is_engine]
    if name is not None:
        found = next((candidate for candidate in candidates if candidate.name == name), None)
        if found is None:
            names = ", ".join(shown(candidate.name) for candidate in candidates[:MAX_LISTED])
            raise UsageError(f"{source} has no service {shown(name)}", hint=f"its services are {names}")
        if not found.is_engine:
            raise UsageError(
                f"the service {_described(found)} starts no engine",
                hint=_choice(engines) if engines else "import the script that it runs",
            )
        return found
    if not engines:
        raise _no_engine(candidates, source)
    # `docker compose up` leaves services of a profile alone.
    started = [candidate for candidate in engines if not (candidate.service and candidate.service.profiles)]
    if len(started or engines) > 1:
        listed = _listed(engines)
        raise UsageError(f"{source} has several services that start an engine: {listed}", hint=_choice(engines))
    return (started or engines)[0]


def _choice(engines: list[_Candidate]) -> str:
    choices = (f"{CHOICE}={plain(candidate.name)}" for candidate in engines[:MAX_LISTED])
    return "choose with " + " or ".join(f"--define {shlex.quote(choice)}" for choice in choices)


def _no_engine(candidates: list[_Candidate], source: str) -> NoEngine:
    listed = _listed(candidates) or "none"
    return NoEngine(
        f"{source} has no service that starts an engine; its services: {listed}",
        hint="import the script or the Dockerfile's command that starts the engine",
    )


def _listed(candidates: list[_Candidate]) -> str:
    return "; ".join(map(_described, candidates[:MAX_LISTED])) + ("; …" if len(candidates) > MAX_LISTED else "")


def _described(candidate: _Candidate) -> str:
    """A service in a few words: its name, what it starts and its profiles."""
    service = candidate.service
    name = shown(candidate.name)
    if service is None:
        return f"{name} (cannot be read: {_short(candidate.error.message if candidate.error else '')})"
    parts = [f"image {shown(service.image)}"] if service.image else ["builds its image"] if service.builds else []
    if candidate.made is not None:
        words = candidate.made[1].words
        model = next(
            (words[at + 1] for at, word in enumerate(words[:-1]) if word == "--model"), words[0] if words else ""
        )
        parts.append(f"model {shown(model.removeprefix('--model='))}")
    elif service.entrypoint or service.command:
        parts.append(f"runs {_short(shlex.join([*(service.entrypoint or []), *(service.command or [])]))}")
    if service.profiles:
        parts.append(f"profile {shown(', '.join(service.profiles))}")
    return f"{name} ({', '.join(parts)})" if parts else name


def _short(text: str) -> str:
    line = " ".join(shown(text).split())
    return line if len(line) <= 60 else f"{line[:59]}…"


def _by_key(note: str, service: Service) -> str:
    """A note about an option of ``docker run``, with the key of the service that stands for the option."""
    for key, options in service.options.items():
        for name, _ in options:
            if note.startswith((f"--{name} ", f"--{name}:")):
                return key + note[len(name) + 2 :]
    return note
