"""Import the service of a Compose file that starts an engine.

Reference: https://docs.docker.com/reference/compose-file/services
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from sparkcluster.errors import NoEngine, SpecError, UsageError
from sparkcluster.importer.commands import Commands, Start
from sparkcluster.importer.container import Container
from sparkcluster.importer.playbook import Made, playbook
from sparkcluster.importer.script import Text
from sparkcluster.importer.shell import Call, Shell
from sparkcluster.importer.unknown import mark, shown
from sparkcluster.printable import word
from sparkcluster.spec.document import Document, KeyPath

# Keys of a service that differ from the option of `docker run`; others are equal, with - for _.
_OPTIONS = {
    "container_name": "name", "devices": "device", "dns_opt": "dns-option", "environment": "env", "mem_limit": "memory",
    "memswap_limit": "memory-swap", "network_mode": "network", "ports": "publish", "pull_policy": "pull",
    "stop_grace_period": "stop-timeout", "sysctls": "sysctl", "ulimits": "ulimit", "volumes": "volume",
    "working_dir": "workdir",
}  # fmt: skip
# Keys that a rank does not need, or that are read separately.
_QUIET = frozenset(
    {
        "<<", "build", "command", "depends_on", "entrypoint", "expose", "extra_hosts", "healthcheck", "image", "labels",
        "links", "logging", "networks", "profiles", "stdin_open", "tty",
    }
)  # fmt: skip
_VARIABLE = re.compile(r"\$(?:(\$)|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:?[-?+])((?:[^{}]|\{[^{}]*\})*))?\})")


def read(document: Document, about: Text) -> Made:
    """The playbook of the service that starts an engine; the others are listed in the notes.

    Raises:
        NoEngine: no service starts an engine.
        UsageError: several services do, or the service is invalid.
        SpecError: the file is invalid.
    """
    services = _services(document)
    shell, commands = Shell(about.source, about.defines, about.asked), Commands(about.importers)
    starts: dict[str, Start] = {}
    refused: dict[str, UsageError] = {}
    for name in services:
        try:
            box, line = _container(document, services, name, about)
            if found := commands.in_container(box, Call(line, ["docker"], {}), shell, []):
                starts[name] = found[0]
        except UsageError as error:
            refused[name] = error
    chosen = about.value("service")
    wanted = [name for name in starts if not _mapping(document, services[name], ("services", name)).get("profiles")]
    names = [chosen] if chosen is not None else (wanted or list(starts))
    if chosen is not None and chosen not in services:
        raise UsageError(f"{about.source} has no service {shown(chosen)}", hint=f"services: {_listed(services)}")
    engines = [importer.ENGINE for importer in about.importers]
    for name, refusal in refused.items():
        is_named = any(engine in str(services[name]).lower() for engine in engines)
        if name == chosen or (chosen is None and is_named and (not names or "extends" in services[name])):
            raise refusal
    if len(names) > 1:
        choices = " or ".join(f"--define {word(f'service={name}')}" for name in names)
        problem = f"{about.source} has several services that start an engine: {_listed(names)}"
        raise UsageError(problem, hint=f"choose with {choices}")
    if not names or names[0] not in starts:
        problem = f"{about.source} has no service that starts an engine; services: {_listed(services) or 'none'}"
        raise commands.instead(about.source) or NoEngine(problem, hint="import the script that the service runs")
    start = starts[names[0]]
    try:
        made, notes = playbook(start)
    except UsageError as error:
        raise _fault(document, ("services", names[0]), error.message, error.hint or "write it in the file") from None
    return made, [*notes, *(f"the service {shown(name)}" for name in services if name != names[0])]


def _services(document: Document) -> dict[str, Any]:
    if document.problems:
        raise SpecError(document.problems)
    return _mapping(document, document.data.get("services"), ("services",))


def _listed(names: Any) -> str:
    return ", ".join(shown(str(name)) for name in [*names][:20])


def _fault(document: Document, path: KeyPath, problem: str, hint: str) -> SpecError:
    return SpecError([document.problem(path, problem, hint)])


def _mapping(document: Document, value: Any, path: KeyPath) -> dict[str, Any]:
    """A mapping with its ``<<`` keys merged."""
    if not isinstance(value, dict):
        raise _fault(document, path, "must be a mapping", "write its keys as 'key: value'")
    merged = value.get("<<", [])
    out: dict[str, Any] = {}
    for base in reversed(merged if isinstance(merged, list) else [merged]):
        out |= _mapping(document, base, path)
    return out | {key: each for key, each in value.items() if key != "<<"}


def _container(document: Document, services: dict[str, Any], name: str, about: Text) -> tuple[Container, int]:
    """The container of a service, and its line."""
    path: KeyPath = ("services", name)
    service = _mapping(document, services[name], path)
    if "extends" in service:
        raise _fault(document, (*path, "extends"), "is not supported", "write the keys of that service here")
    reader = _Values(document, about)
    box = Container(name=reader.text(service["container_name"], path) if service.get("container_name") else None)
    for key, value in service.items():
        if key not in _QUIET and key != "container_name" and not key.startswith("x-") and value is not None:
            reader.put(box, key, value, (*path, key))
    if service.get("image") is None:
        raise _fault(document, path, "has no image", "build the image, and add image: NAME")
    box.image = reader.text(service["image"], (*path, "image"))
    if service.get("build"):
        box.notes.append(f"build: build the image {shown(box.image)} on the first node")
    words = reader.words(service.get("command"), (*path, "command"))
    entry = service.get("entrypoint")
    if entry is not None:
        box.entrypoint, *more = reader.words(entry, (*path, "entrypoint")) or [""]
        words = [*more, *words]
    box.words = words
    place = document.values.get(path)
    return box, place.line if place else 1


class _Values:
    """Values of a Compose file, with variables expanded."""

    def __init__(self, document: Document, about: Text) -> None:
        self._document, self._about = document, about

    def put(self, box: Container, key: str, value: Any, path: KeyPath) -> None:
        """Convert a key of a service."""
        option = _OPTIONS.get(key, key.replace("_", "-"))
        if key in {"deploy", "gpus"}:
            self._reserved(box, key, value)
        elif isinstance(value, dict):
            for name, each in _mapping(self._document, value, path).items():
                limited = isinstance(each, dict) and key == "ulimits"  # soft and hard, which may be the same
                limits = list(dict.fromkeys(map(str, each.values()))) if limited else each
                text = ":".join(map(str, limits)) if isinstance(limits, list) else limits
                entry = name if text is None else f"{name}={self.text(text, (*path, name))}"
                box.put(option, entry, f"{key}:")
        else:
            for at, each in enumerate(value if isinstance(value, list) else [value]):
                text = self.text(each, (*path, at))
                if each is not False and (key, text) != ("restart", "no"):
                    box.put(option, "" if each is True else text, f"{key}:")

    def _reserved(self, box: Container, key: str, value: Any) -> None:
        """Convert ``deploy`` and ``gpus``; a GPU reservation is ignored, since every rank has the only GPU."""
        asked = value if isinstance(value, dict) else {}
        resources = asked.get("resources")
        others = [str(name) for name in [*asked, *(resources if isinstance(resources, dict) else ())]]
        others = [name for name in others if name not in {"labels", "reservations", "resources"}]
        box.notes += [f"deploy.{shown(name)}: a playbook has no such key" for name in others if key == "deploy"]

    def text(self, value: Any, path: KeyPath) -> str:
        """A scalar as in Compose: ``true``, 0.90 as 0.9, with variables expanded."""
        if isinstance(value, dict | list):
            raise _fault(self._document, path, "must be text", "write the short form, such as - source:target")
        if isinstance(value, bool):  # only these are in YAML 1.2
            written = self._document.written.get(path, str(value))
            return written.lower() if written.lower() in {"true", "false"} else written
        text = repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
        return self._filled(text)

    def words(self, value: Any, path: KeyPath) -> list[str]:
        """A command: a list of words, or text split at blanks outside quotes, without a shell."""
        if value is None:
            return []
        if isinstance(value, list):
            return [self.text(each, (*path, at)) for at, each in enumerate(value)]
        try:
            # variables are expanded before the text is split
            out = shlex.split(self.text(value, path).replace("\\\n", " "))
        except ValueError:
            raise _fault(self._document, path, "has an unclosed quote", "close it") from None
        if cut := {"&&", "||", ";", "|", ">", "<", "&"} & {*out}:
            hint = 'write the command as a list: ["bash", "-c", "…"]'
            raise _fault(self._document, path, f"has {cut.pop()}, but Compose runs no shell", hint)
        return out

    def _filled(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            if found[1]:
                return "$"
            name, operator, word = found[2] or found[3], found[4] or "", found[5] or ""
            given = self._about.value(name)
            given = "~" if given is None and name == "HOME" else given
            is_set = given is not None if operator in {"-", "?", "+", ""} else bool(given)
            if operator.endswith("+"):
                return self._filled(word) if is_set else ""
            if operator.endswith("-") and not is_set:
                return self._filled(word)
            return mark(name) if given is None else given

        return _VARIABLE.sub(value, text)
