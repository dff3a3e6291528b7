"""Convert the options of ``docker run`` to playbook keys, with notes about the others."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, get_args

from sparkcluster.errors import UsageError
from sparkcluster.importer.unknown import definable, plain, shown, unknown
from sparkcluster.spec.playbook import USER, Ulimit, is_root

# Options of `docker run` and `podman run` without a value (docs.docker.com, CLI reference); all others have a value.
_ALONE = frozenset(
    {
        "detach", "disable-content-trust", "help", "init", "interactive", "no-healthcheck", "oom-kill-disable",
        "privileged", "publish-all", "quiet", "read-only", "replace", "rm", "sig-proxy", "tty", "use-api-socket",
    }
)  # fmt: skip
_SHORT = {
    "a": "attach", "c": "cpu-shares", "d": "detach", "e": "env", "h": "hostname", "i": "interactive", "l": "label",
    "m": "memory", "p": "publish", "P": "publish-all", "q": "quiet", "t": "tty", "u": "user", "v": "volume",
    "w": "workdir",
}  # fmt: skip
# Options that every rank has anyway, or that have no effect on a rank.
_GIVEN = frozenset(
    {
        "add-host", "attach", "detach", "gpus", "hostname", "init", "interactive", "label", "log-driver", "log-opt",
        "net", "network", "platform", "pull", "quiet", "replace", "rm", "runtime", "shm-size", "sig-proxy",
        "stop-timeout", "tty",
    }
)  # fmt: skip
# Limits of every rank, in the plan's docker run.
_LIMITS = {"memlock": -1, "stack": 64 << 20, "nofile": 1048576}
_DEVICE = re.compile(r"(/dev/[A-Za-z0-9_/-]*[A-Za-z0-9_-])(?::(/[^:]*))?(?::[rwm]*)?")
_PUBLISHED = re.compile(r"(?:\S*:)?(\d+):(\d+)(?:/\w+)?")

REFUSED = {
    "device": "ranks get GPUs, RDMA devices and those under container.devices, at the same path as on the node",
    "env-file": "write its variables under env, but the names of secrets under secrets",
    "ipc": "ranks share the node's IPC and its /dev/shm",
    "memory": "a limit on unified memory kills the engine while it loads; set gpu-memory-utilization under args",
    "memory-swap": "set gpu-memory-utilization under args instead",
    "pid": "ranks have their own process namespace",
    "privileged": "ranks run without --privileged; they get GPUs and RDMA devices without it",
    "publish-all": "ranks use the node's network; set api.port in the inventory",
    "restart": "containers do not restart by themselves: all ranks of a group start and stop together",
    "security-opt": "ranks run with Docker's default confinement",
    "sysctl": "set it on the nodes",
    "tmpfs": "mount a directory of the node instead",
    "ulimit": "container.ulimits takes one number for each limit, which is both soft and hard",
    "user": "ranks run as the image's user; set container.user in the playbook for another",
    "volumes-from": "write each directory under mounts",
    "workdir": "the engine starts in the image's own directory; write full paths",
}
"""Options without a playbook key, and the alternative."""


@dataclasses.dataclass(frozen=True, slots=True)
class Volume:
    """A directory or file of the node that is mounted in the container."""

    source: str
    target: str
    read_only: bool


@dataclasses.dataclass(slots=True)
class Container:
    """A container.

    Attributes:
        image: image reference.
        words: words after the image.
        entrypoint: replacement of the image's entrypoint; None to keep it, empty for none.
        name: name of the container.
        env: variables with values; None for the caller's value.
        volumes: mounts from the node.
        section: the section ``container`` of the playbook.
        keys: further keys of the playbook.
        notes: options that were not converted, with reasons.
    """

    image: str = ""
    words: list[str] = dataclasses.field(default_factory=list)
    entrypoint: str | None = None
    name: str | None = None
    env: dict[str, str | None] = dataclasses.field(default_factory=dict)
    volumes: list[Volume] = dataclasses.field(default_factory=list)
    section: dict[str, Any] = dataclasses.field(default_factory=dict)
    keys: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    def put(self, name: str, value: str, written: str | None = None) -> None:
        """Convert an option, given by its long name; ``written`` is its name in the text, for notes."""
        called = written or f"--{name}"
        if name == "env":
            variable, equals, text = value.partition("=")
            self.env[variable] = text if equals else None
        elif name in {"volume", "mount"}:
            self._volume(called, name, value)
        elif name == "entrypoint":
            self.entrypoint = value
        elif name == "name":
            self.name = plain(value)
        elif name == "publish":
            found = _PUBLISHED.fullmatch(value)
            if found is None or found.groups() != ("8000", "8000"):
                port = found[1] if found else shown(value)
                self.notes.append(f"{called} {shown(value)}: write api.port: {port} in the inventory")
        elif name not in _GIVEN and (name, value) not in {("ipc", "host"), ("ipc", "")} and not self._has(name, value):
            why = REFUSED.get(name, "a playbook has no such key")
            self.notes.append(f"{shown(f'{called} {value}').strip()}: {why}")

    def _has(self, name: str, value: str) -> bool:
        """Add an option to the section ``container``; false if it has no key there."""
        limit, _, numbers = value.partition("=")
        device = _DEVICE.fullmatch(value)
        if name == "user" and re.fullmatch(USER, value):
            self.section["user"] = value
        elif name == "cap-add":
            self.section.setdefault("cap_add", []).append(value.upper().removeprefix("CAP_"))
        elif name == "device" and device and device[2] in {None, device[1]}:
            if not device[1].startswith(("/dev/infiniband", "/dev/nvidia")):
                self.section.setdefault("devices", []).append(device[1])
        elif name == "ulimit" and limit in get_args(Ulimit) and re.fullmatch(r"(-1|\d{1,18})(:\1)?", numbers):
            number = int(numbers.partition(":")[0])
            if number != _LIMITS.get(limit):
                self.section.setdefault("ulimits", {})[limit] = number
        else:
            return False
        return True

    def _volume(self, called: str, name: str, value: str) -> None:
        if name == "mount":
            fields = {part.partition("=")[0]: part.partition("=")[2] or "true" for part in value.split(",")}
            source = fields.get("source", fields.get("src", "")) if fields.get("type") == "bind" else ""
            target = fields.get("target", fields.get("destination", fields.get("dst", "")))
            read_only = fields.get("readonly", fields.get("ro", "false")) != "false"
        else:
            source, target, *options = [*value.split(":"), ""]
            read_only = "ro" in ",".join(options).split(",")
        if (source.startswith(("/", "~")) or unknown(source)[:1] in (["PWD"], ["$(pwd …)"])) and target.startswith("/"):
            self.volumes.append(Volume(source.rstrip("/") or "/", target.rstrip("/") or "/", read_only))
        else:
            self.notes.append(f"{called} {shown(value)}: write the full path of a directory, such as ~/data")


def read(words: list[str]) -> Container:
    """The container that the words after ``docker run`` start.

    Raises:
        UsageError: no image, or an option without a value.
    """
    out = Container()
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        for name, value in _options(word):
            if name in _ALONE or value is not None:
                out.put(name, value or "")
            elif not rest:
                raise UsageError(f"{plain(word)} has no value", hint="copy the complete command")
            else:
                out.put(name, rest.pop(0))
    if not rest:
        raise UsageError("docker run has no image", hint="copy the complete command")
    out.image, out.words = rest[0], rest[1:]
    if "cap_add" in out.section and not is_root(out.section.get("user", "root")):
        out.notes.append(f"--user {shown(out.section.pop('user'))}: with --cap-add, ranks run as the image's user")
    return out


def known(word: str, what: str) -> str:
    """Return ``word`` if it is known; ``what`` starts the message if it is not.

    Raises:
        UsageError: it contains a variable that the text does not set.
    """
    for name in unknown(word):
        define = definable(name)
        hint = f"add --define {define}=VALUE" if define else "write its value in the text"
        raise UsageError(f"{what} {shown(word)}, which is not set", hint=hint)
    return word


def _options(word: str) -> list[tuple[str, str | None]]:
    """Options in one word, by long name: ``-it`` has two; ``-p8000:8000`` and ``--ipc=host`` include their value."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return [(name, value if equals else None)]
    out: list[tuple[str, str | None]] = []
    for at, letter in enumerate(word[1:], start=1):
        name = _SHORT.get(letter, letter)
        if name not in _ALONE:
            return [*out, (name, word[at + 1 :].removeprefix("=") or None)]
        out.append((name, None))
    return out
