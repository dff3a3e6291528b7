"""What ``docker inspect NAME IMAGE`` prints, as a playbook; ``import --container`` adds the processes in it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from sparkcluster.errors import NoEngine, UsageError
from sparkcluster.importer import script
from sparkcluster.importer.commands import Commands
from sparkcluster.importer.container import Container
from sparkcluster.importer.playbook import Made
from sparkcluster.importer.script import Text
from sparkcluster.importer.shell import Call, Shell
from sparkcluster.importer.unknown import shown, unknown
from sparkcluster.node.shared import LABEL_CLUSTER, repository_of
from sparkcluster.spec.playbook import is_root
from sparkcluster.spec.secret_patterns import holds_secret, names_secret

_TYPE = "docker inspect NAME IMAGE | sparkcluster import -"
_HEAD = "import the container of the head, where the API is"
# What a shell or Docker gives every process, none of it meant for the engine.
_OF_SHELLS = frozenset({"HOME", "HOSTNAME", "LS_COLORS", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "USER", "_"})
_ADDRESS = re.compile(r"(?!127\.|0\.0\.0\.0)\d{1,3}(\.\d{1,3}){3}(:\d+)?")
# Options of `docker run` by their places in the document (docs.docker.com, Engine API, ContainerInspect).
_ROWS = (("device", "Devices", "{PathOnHost}:{PathInContainer}"), ("ulimit", "Ulimits", "{Name}={Soft}:{Hard}"))
_OPTIONS = {
    "cap-add": "CapAdd", "group-add": "GroupAdd", "ipc": "IpcMode", "memory": "Memory", "pid": "PidMode",
    "privileged": "Privileged", "restart": "RestartPolicy.Name", "security-opt": "SecurityOpt", "sysctl": "Sysctls",
    "tmpfs": "Tmpfs",
}  # fmt: skip
# Values of theirs where nobody set one; Docker itself adds the last to --privileged.
_DEFAULTS = frozenset({"no", "private", "shareable", "label=disable"})


@dataclasses.dataclass(frozen=True, slots=True)
class _Document:
    """A container, an image, or a part of one; it has null for what is empty."""

    data: dict[str, Any]

    def at(self, path: str) -> Any:
        """The value of a key, or behind several keys with dots between them."""
        value: Any = self.data
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def text(self, path: str) -> str:
        """A text."""
        return str(self.at(path) or "")

    def words(self, path: str) -> list[str]:
        """What is set, as texts: of a list each, of a mapping its pairs, of a switch an empty one."""
        value = self.at(path) or []
        if isinstance(value, dict):
            return [f"{key}={each}" for key, each in value.items()]
        return [str(each) for each in value] if isinstance(value, list) else ["" if value is True else str(value)]

    def rows(self, path: str) -> list[_Document]:
        """The mappings in a list."""
        value = self.at(path)
        return [_Document(each) for each in (value if isinstance(value, list) else []) if isinstance(each, dict)]


def read(text: str, about: Text) -> Made:
    """The playbook of the engine that runs in a container.

    Raises:
        UsageError: there is no container with its image in ``text``, or no engine in it that can be imported.
    """
    try:
        documents = _Document({"all": json.loads(text)}).rows("all")
    except (ValueError, RecursionError):
        raise UsageError(f"{about.source} is not what docker inspect prints", hint=_TYPE) from None
    box = next((each for each in documents if each.at("HostConfig")), None)
    if box is None:
        raise UsageError(f"{about.source} has no container", hint=_TYPE)
    name = box.text("Name").lstrip("/")
    if cluster := box.at("Config.Labels") and box.at("Config.Labels").get(LABEL_CLUSTER):
        raise UsageError(f"sparkcluster started {name}, of the cluster {shown(str(cluster))}", hint="it has a playbook")
    image = next((each for each in documents if each.at("RootFS")), None)
    if image is None:
        what = f"{about.source} does not say which variables of {name} are those of its image"
        raise UsageError(what, hint=_TYPE.replace("NAME IMAGE", f"{name} {box.text('Config.Image')}"))
    found = next((each for each in documents if each.at("Processes") is not None), None)
    processes = (
        None if found is None else [(each.words("Argv"), each.words("Environ")) for each in found.rows("Processes")]
    )
    return _Import(box, image, name, about, processes).made()


@dataclasses.dataclass(slots=True)
class _Import:
    """A container that somebody started, with its image; processes with their variables, if they are known."""

    box: _Document
    image: _Document
    name: str
    about: Text
    processes: list[tuple[list[str], list[str]]] | None

    def made(self) -> Made:
        """The playbook of what the container's command starts, else of the first process in it that is an engine."""
        words, env = [self.box.text("Path"), *self.box.words("Args")], self.box.words("Config.Env")
        entry = self.box.words("Config.Entrypoint")
        behind = words[len(entry) :] if words[: len(entry)] == entry else []  # NVIDIA's images have a wrapper
        tried = [(words, env), *([(behind, env)] if behind != words and behind else [])]
        refused, others, shell = list[UsageError](), Commands([]), Shell(self.about.source, {}, self.about.asked)
        for at, (argv, environ) in enumerate([*tried, *(self.processes or [])]):
            commands = Commands(self.about.importers)
            try:
                starts = commands.in_container(self._container(argv, environ or env), Call(1, argv, {}), shell, [])
                if starts and self.processes and any(map(unknown, starts[0].words)):
                    continue  # its process has the values
                document, notes = script.chosen(starts, commands, shell, self.about)
            except NoEngine:
                others.others += commands.others
            except UsageError as error:
                refused.append(error)
            else:
                if any(each.importer.is_worker(each.words) for each in starts):
                    raise UsageError(f"{self.name} is not the first rank of its group", hint=_HEAD)
                env_of = document.get("env", {})
                lost = [each for each, value in env_of.items() if _ADDRESS.fullmatch(value)]
                notes += [f"{each}={env_of.pop(each)}: left out: it is the address of a machine" for each in lost]
                return document, [*notes, *self._notes(at >= len(tried))]
        raise refused[0] if refused else self._nothing(others)

    def _container(self, argv: list[str], environ: list[str]) -> Container:
        """The container with another command, as ``docker run`` would start it."""
        box = Container(words=argv[1:], entrypoint=argv[0], name=self.name)
        box.image = self._reference(box.notes)
        theirs = self.image.words("Config.Env")
        for each in environ:
            name = each.partition("=")[0]
            if each not in theirs and name not in _OF_SHELLS:
                box.put("env", name if names_secret(name) or holds_secret(each) else each)
        for option, value in self._options():
            box.put(option, value)
        user = self.box.text("Config.User")
        if user != self.image.text("Config.User") and (is_root(user) or "cap_add" not in box.section):
            box.put("user", user)
        elif user != self.image.text("Config.User"):
            box.notes.append(f"--user {shown(user)}: with --cap-add ranks run as the image's user")
        return box

    def _options(self) -> Iterator[tuple[str, str]]:
        """Options of ``docker run`` by their long names."""
        for each in self.box.rows("Mounts"):
            source = each.text("Source" if each.at("Type") == "bind" else "Name")
            target, own = each.text("Destination"), self.image.at("Config.Volumes") or {}
            if source and target not in own:
                yield "volume", f"{source}:{target}" + ("" if each.at("RW") else ":ro")
        for option, place, form in _ROWS:
            for each in self.box.rows(f"HostConfig.{place}"):
                yield option, form.format_map(defaultdict(str, each.data))
        ports = _Document(self.box.at("HostConfig.PortBindings") or {})
        for port in ports.data:
            for each in ports.rows(port):
                yield "publish", f"{each.text('HostPort')}:{port.partition('/')[0]}"
        for option, place in _OPTIONS.items():
            for value in self.box.words(f"HostConfig.{place}"):
                if value not in _DEFAULTS:
                    yield option, value
        if (directory := self.box.text("Config.WorkingDir")) != self.image.text("Config.WorkingDir"):
            yield "workdir", directory

    def _reference(self, notes: list[str]) -> str:
        """The image as it was named, with the registry's digest; a name without an organisation is a local one's."""
        written, digests = self.box.text("Config.Image"), self.image.words("RepoDigests")
        if re.fullmatch("(sha256:)?[0-9a-f]{12,64}", written):
            written = next(iter([*self.image.words("RepoTags"), *digests]), written)
        own = [each for each in digests if repository_of(each) == repository_of(written)]
        if self.image.at("Id") != self.box.at("Image"):
            notes.append(f"{written}: the name is another image's by now; the container runs {self.box.text('Image')}")
        elif "@" not in written and own and "/" in repository_of(written):
            return f"{written}@{own[0].partition('@')[2]}"
        elif "@" not in written:
            notes.append(f"{written}: no registry has it: keep it on that node; sparkcluster copies it to the others")
        return written

    def _notes(self, by_process: bool) -> list[str]:
        """What the documents do not tell, and how to hand over."""
        notes = ["the command is that of a process in the container; of files changed there: docker diff " + self.name]
        stop = f"to hand over: docker stop {self.name}   and its workers on other nodes, then sparkcluster up INVENTORY"
        return [*(notes if by_process else []), *([stop] if self.box.at("State.Running") else [])]

    def _nothing(self, others: Commands) -> UsageError:
        """Why no engine was found."""
        others.importers = self.about.importers
        found = others.nothing(self.name, Shell(self.name, {}, {}))
        if found.hint is None:  # another engine
            return NoEngine(found.message.replace(":1: this", "", 1))
        lines = list(dict.fromkeys(" ".join(words) for _, words in others.others))
        text = "\n".join(lines)
        if re.search(r"\bray start\b|\braylet\b", text) and not re.search(r"--head\b|\bgcs_server\b", text):
            return NoEngine(f"{self.name} is a worker of Ray, without the engine's command", hint=_HEAD)
        what = f"`{shown(self.box.text('Path') + ' ' + ' '.join(self.box.words('Args')), 80)}`"
        more = ", ".join(f"`{shown(line, 60)}`" for line in lines[:5] if self.processes)
        hint = "docker ps lists the containers that run"
        if self.processes is None:
            hint = f"sparkcluster import --container {self.name} --node HOST   reads the processes in it, too"
        elif not self.box.at("State.Running"):
            what, hint = f"{what}, and is stopped", f"docker start {self.name}, and start the engine in it"
        return NoEngine(f"{found.message}: it runs {what}" + (f"; in it run {more}" if more else ""), hint=hint)
