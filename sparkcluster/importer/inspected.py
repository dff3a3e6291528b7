"""Import the output of ``docker inspect NAME IMAGE``; ``import --container`` adds the container's processes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from sparkcluster.errors import NoEngine, UsageError
from sparkcluster.importer import container, script
from sparkcluster.importer.commands import Commands
from sparkcluster.importer.playbook import Made
from sparkcluster.importer.script import Text
from sparkcluster.importer.shell import Call, Shell
from sparkcluster.importer.unknown import shown, unknown
from sparkcluster.node.shared import LABEL_CLUSTER, repository_of
from sparkcluster.printable import word
from sparkcluster.spec.secret_patterns import holds_secret, names_secret

_HEAD = "import the head's container, which has the API"
# Variables that a shell or Docker sets for every process.
_OF_SHELLS = frozenset({"HOME", "HOSTNAME", "LS_COLORS", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "USER", "_"})
_ADDRESS = re.compile(r"=(?!127\.|0\.0\.0\.0)\d{1,3}(\.\d{1,3}){3}(:\d+)?$")
# Paths of `docker run` options in the documents (docs.docker.com, Engine API, ContainerInspect).
_OPTIONS = {
    "name": "Name", "user": "Config.User", "workdir": "Config.WorkingDir", "cap-add": "HostConfig.CapAdd",
    "ipc": "HostConfig.IpcMode", "memory": "HostConfig.Memory", "pid": "HostConfig.PidMode",
    "privileged": "HostConfig.Privileged", "restart": "HostConfig.RestartPolicy.Name",
    "security-opt": "HostConfig.SecurityOpt", "tmpfs": "HostConfig.Tmpfs",
}  # fmt: skip
# Default values of these options; Docker adds the last to --privileged.
_DEFAULTS = frozenset({"no", "private", "shareable", "label=disable"})


class _Document(dict[str, Any]):
    """A container, an image, or a part of one; empty values may be null."""

    def at(self, path: str) -> Any:
        """The value at a path of keys joined by dots."""
        value: Any = self
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def words(self, path: str) -> list[str]:
        """The value as strings: entries of a list, keys of a mapping, or an empty string for true."""
        value = self.at(path) or []
        values = value if isinstance(value, list | dict) else ["" if value is True else value]
        return [str(each) for each in values]

    def text(self, path: str) -> str:
        """The value as one string."""
        return " ".join(self.words(path))

    def rows(self, path: str) -> list[_Document]:
        """The mappings in a list."""
        value = self.at(path)
        return [_Document(each) for each in (value if isinstance(value, list) else []) if isinstance(each, dict)]


def read(text: str, about: Text) -> Made:
    """The playbook of the engine in a container, from its command, else from the first engine process.

    Raises:
        UsageError: ``text`` lacks a container with its image, or the container has no supported engine.
    """
    try:
        documents = _Document(all=json.loads(text)).rows("all")
    except (ValueError, RecursionError):
        documents = []
    box = next((each for each in documents if each.at("HostConfig")), _Document())
    image = next((each for each in documents if each.at("RootFS")), None)
    named = box.text("Name").lstrip("/")
    name = named and word(named)
    if LABEL_CLUSTER in box.words("Config.Labels"):
        raise UsageError(f"{name} was started by sparkcluster", hint="use the playbook of its cluster")
    if image is None or not name:
        what = f"the image of {name}, which lists the image's own variables" if name else "a container"
        names = f"{name} {word(box.text('Config.Image'))}" if name else "NAME IMAGE"
        raise UsageError(f"{about.source} lacks {what}", hint=f"docker inspect {names} | sparkcluster import -")
    words, env = [box.text("Path"), *box.words("Args")], box.words("Config.Env")
    behind = words[len(box.words("Config.Entrypoint")) :] or words  # NVIDIA's images have a wrapper in front of it
    live = [(row.words("Argv"), row.words("Environ") or env) for each in documents for row in each.rows("Processes")]
    refused, others, shell = list[UsageError](), Commands(about.importers), Shell(about.source, {}, about.asked)
    for argv, environ in [(words, env), (behind, env), *live]:
        commands, options = Commands(about.importers), [*_options(box, image), *_variables(environ, image)]
        run = [*options, f"--entrypoint={''.join(argv[:1])}", _reference(box, image), *argv[1:]]
        try:
            starts = commands.in_container(container.read(run), Call(1, argv, {}), shell, [])
            if starts and live and any(map(unknown, starts[0].words)):
                continue  # its process has the values
            document, notes = script.chosen(starts, commands, shell, about)
        except NoEngine:
            others.others += commands.others
        except UsageError as error:
            refused.append(error)
        else:
            if any(each.importer.is_worker(each.words) for each in starts):
                raise UsageError(f"{name} is not the first rank of its group", hint=_HEAD)
            return document, [*notes, *_notes(document["image"], box, name, argv in (words, behind))]
    raise refused[0] if refused else _nothing(box, others, name, bool(live))


def _variables(environ: list[str], image: _Document) -> list[str]:
    """Variables that are not from the image; without values that are secrets or addresses."""
    env = {each.partition("=")[0]: each for each in environ if each not in image.words("Config.Env")}
    bare = {name for name, each in env.items() if names_secret(name) or holds_secret(each) or _ADDRESS.search(each)}
    return [f"--env={name if name in bare else each}" for name, each in env.items() if name not in _OF_SHELLS]


def _options(box: _Document, image: _Document) -> Iterator[str]:
    for option, place in _OPTIONS.items():
        given = [value for value in box.words(place) if value not in {*_DEFAULTS, *image.words(place)}]
        yield from (f"--{option}={value}" for value in given)
    for each in box.rows("Mounts"):
        source, target = each.text("Source" if each.at("Type") == "bind" else "Name"), each.text("Destination")
        if source and target not in image.words("Config.Volumes"):
            yield f"--volume={source}:{target}" + ("" if each.at("RW") else ":ro")
    for each in box.rows("HostConfig.Devices"):
        yield f"--device={each.text('PathOnHost')}:{each.text('PathInContainer')}"
    for each in box.rows("HostConfig.Ulimits"):
        yield f"--ulimit={each.text('Name')}={each.at('Soft')}:{each.at('Hard')}"
    for port in box.words("HostConfig.PortBindings"):
        for each in _Document(box.at("HostConfig.PortBindings")).rows(port):
            yield f"--publish={each.text('HostPort')}:{port.partition('/')[0]}"


def _reference(box: _Document, image: _Document) -> str:
    """The image reference as written, with its registry digest."""
    written, tags, digests = box.text("Config.Image"), image.words("RepoTags"), image.words("RepoDigests")
    if re.fullmatch("(sha256:)?[0-9a-f]{12,64}", written):
        written = next(iter([*tags, *digests]), written)
    repository, is_same = repository_of(written), image.at("Id") == box.at("Image")
    # Names without an organization are local builds, for which containerd also has digests.
    found = [each for each in digests if repository_of(each) == repository and "/" in repository and is_same]
    return f"{written}@{found[0].partition('@')[2]}" if found and "@" not in written else written


def _notes(image: str, box: _Document, name: str, by_command: bool) -> Iterator[str]:
    """Notes about missing information, and how to switch to sparkcluster."""
    if "@" not in image:
        yield f"{image}: has no registry digest: keep the image on that node, from which other nodes copy it"
    if not by_command:
        yield f"the command was read from a process in {name}; docker diff {name}   lists files changed there"
    if box.at("State.Running"):
        yield f"to switch: docker stop {name}   also on the other nodes, then sparkcluster up INVENTORY"


def _nothing(box: _Document, others: Commands, name: str, has_processes: bool) -> UsageError:
    """The error that no engine was found."""
    found = others.nothing(name, Shell(name, {}, {}))
    if ":1: this starts " in found.message:  # another engine
        return NoEngine(found.message.replace(":1: this", "", 1), hint=found.hint)
    commands = [" ".join([box.text("Path"), *box.words("Args")]), *(" ".join(words) for _, words in others.others)]
    runs = ", ".join(f"`{shown(line, 80)}`" for line in list(dict.fromkeys(commands))[:5])
    if re.search(r"\bray start (?!--head)|\braylet\b", runs) and "gcs_server" not in runs:
        return NoEngine(f"{name} is a Ray worker without the engine's command", hint=_HEAD)
    hint = f"sparkcluster import --container {name} --node HOST   also reads its processes"
    if has_processes or not box.at("State.Running"):
        hint = f"start the engine in {name}, or import another container: docker ps --all"
    title = others.importers[0].TITLE
    return NoEngine(f"{name} ({box.text('State.Status')}) does not run {title}, but {runs}", hint=hint)
