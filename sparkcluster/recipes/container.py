"""The words of a ``docker run`` command, the image's arguments included."""

from __future__ import annotations

import csv
import dataclasses
import re
from typing import Any, get_args

from sparkcluster.errors import UsageError
from sparkcluster.recipes.shell import plain, shown, unknown
from sparkcluster.spec.playbook import USER, Ulimit, is_root

# Options of `podman run` with a value that `docker run` has not (docs.podman.io).
_OF_PODMAN = frozenset(
    {
        "arch", "authfile", "cgroup-conf", "cgroups", "chrootdirs", "conmon-pidfile", "creds", "decryption-key",
        "env-merge", "gidmap", "group-entry", "health-log-destination", "health-max-log-count", "health-max-log-size",
        "health-on-failure", "health-startup-cmd", "health-startup-interval", "health-startup-retries",
        "health-startup-success", "health-startup-timeout", "hooks-dir", "hostuser", "image-volume", "init-path", "os",
        "passwd-entry", "personality", "pidfile", "pod", "pod-id-file", "preserve-fd", "preserve-fds", "rdt-class",
        "requires", "retry", "retry-delay", "sdnotify", "seccomp-policy", "secret", "shm-size-systemd", "subgidname",
        "subuidname", "systemd", "timeout", "tz", "uidmap", "umask", "unsetenv", "variant",
    }
)  # fmt: skip
# Options of `docker run` with a value (docs.docker.com, CLI reference).
VALUED = _OF_PODMAN | frozenset(
    {
        "add-host", "annotation", "attach", "blkio-weight", "blkio-weight-device", "cap-add", "cap-drop",
        "cgroup-parent", "cgroupns", "cidfile", "cpu-period", "cpu-quota", "cpu-rt-period", "cpu-rt-runtime",
        "cpu-shares", "cpus", "cpuset-cpus", "cpuset-mems", "detach-keys", "device", "device-cgroup-rule",
        "device-read-bps", "device-read-iops", "device-write-bps", "device-write-iops", "dns", "dns-option",
        "dns-search", "domainname", "entrypoint", "env", "env-file", "expose", "gpus", "group-add", "health-cmd",
        "health-interval", "health-retries", "health-start-interval", "health-start-period",
        "health-timeout", "hostname", "ip", "ip6",
        "ipc", "isolation", "kernel-memory", "label", "label-file", "link", "link-local-ip", "log-driver",
        "log-opt", "mac-address", "memory", "memory-reservation", "memory-swap", "memory-swappiness", "mount",
        "name", "net", "net-alias", "network", "network-alias", "oom-score-adj", "pid", "pids-limit", "platform",
        "publish", "pull", "restart", "runtime", "security-opt", "shm-size", "stop-signal", "stop-timeout",
        "storage-opt", "sysctl", "tmpfs", "ulimit", "user", "userns", "uts", "volume", "volume-driver",
        "volumes-from", "workdir",
    }
)  # fmt: skip
ALONE = frozenset(
    {
        "detach", "disable-content-trust", "help", "init", "interactive", "no-healthcheck", "oom-kill-disable",
        "privileged", "publish-all", "quiet", "read-only", "rm", "sig-proxy", "tty", "use-api-socket",
        "env-host", "http-proxy", "no-hostname", "no-hosts", "passwd", "read-only-tmpfs", "replace", "rmi", "rootfs",
        "tls-verify", "unsetenv-all",  # of podman
    }
)  # fmt: skip
SHORT = {
    "a": "attach", "c": "cpu-shares", "d": "detach", "e": "env", "h": "hostname", "i": "interactive", "l": "label",
    "m": "memory", "p": "publish", "P": "publish-all", "q": "quiet", "t": "tty", "u": "user", "v": "volume",
    "w": "workdir",
}  # fmt: skip

# What the plan gives every rank anyway, or what has no effect on a rank.
GIVEN = frozenset(
    {
        "detach", "interactive", "tty", "rm", "init", "name", "gpus", "runtime", "hostname", "label", "pull", "quiet",
        "platform", "add-host", "log-driver", "log-opt", "stop-timeout", "attach", "sig-proxy", "net", "network",
        "replace", "shm-size",  # ranks have the node's /dev/shm, half of its memory
    }
)  # fmt: skip

# Limits of every rank, in the plan's docker run.
_LIMITS = {"memlock": -1, "stack": 64 << 20, "nofile": 1048576}
_DEVICE = re.compile(r"(/dev/[A-Za-z0-9_/-]*[A-Za-z0-9_-])(?::(/[^:]*))?(?::[rwm]*)?")

# What a playbook cannot ask for, and why.
REFUSED = {
    "secret": "list its variable under secrets",
    "restart": "containers do not restart: all ranks of a group start and stop together",
    "privileged": "ranks run without --privileged; they get GPUs and RDMA devices without it",
    "memory": "a limit on unified memory kills the engine while it loads; gpu-memory-utilization bounds it",
    "memory-swap": "see memory: gpu-memory-utilization bounds the engine",
    "env-file": "write its lines under env, and the secret ones' names under secrets",
    "user": "ranks run as the image's user; another is container.user of the playbook",
    "workdir": "write cd under setup, if the engine needs it",
    "publish-all": "ranks use the node's own network; api.port in the inventory",
    "device": "ranks get GPUs, RDMA devices and those under container.devices, by the path that they have on the node",
    "security-opt": "ranks run with Docker's default confinement",
    "volumes-from": "write each directory under mounts",
    "tmpfs": "mount a directory of the node instead",
    "pid": "ranks have their own process namespace",
    "sysctl": "set it on the nodes",
    "ipc": "ranks share the node's IPC and its /dev/shm",
    "ulimit": "container.ulimits has one number for each limit of Docker's, soft and hard",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Volume:
    """A directory or file of the node in the container."""

    source: str
    target: str
    read_only: bool


@dataclasses.dataclass(slots=True)
class Container:
    """A ``docker run`` command.

    Attributes:
        image: its reference.
        words: after the image.
        entrypoint: instead of the image's own; None to keep it, empty for none.
        name: of the container.
        env: variables with their values; None for the caller's value.
        volumes: what it sees of the node.
        cap_add: capabilities.
        devices: device files beside those that every rank has.
        ulimits: limits that differ from those of every rank.
        user: instead of the image's.
        keys: of the playbook, beside the section ``container``.
        notes: what was not carried over, and why.
        unclear: why its image may be another word, and what to type.
    """

    image: str = ""
    words: list[str] = dataclasses.field(default_factory=list)
    entrypoint: str | None = None
    name: str | None = None
    env: dict[str, str | None] = dataclasses.field(default_factory=dict)
    volumes: list[Volume] = dataclasses.field(default_factory=list)
    cap_add: list[str] = dataclasses.field(default_factory=list)
    devices: list[str] = dataclasses.field(default_factory=list)
    ulimits: dict[str, int] = dataclasses.field(default_factory=dict)
    user: str | None = None
    keys: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    unclear: tuple[str, str] | None = None

    @property
    def further(self) -> dict[str, Any]:
        """The section ``container`` of a playbook."""
        section = {"user": self.user, "cap_add": self.cap_add, "devices": self.devices, "ulimits": self.ulimits}
        return {key: value for key, value in section.items() if value}


def read(words: list[str]) -> Container:
    """What the words after ``docker run`` say.

    Raises:
        UsageError: there is no image among them, or an option cannot be read.
    """
    out = Container()
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            index -= 1
            break
        for name, value in _options(word):
            if name in VALUED and value is None:
                if index >= len(words):
                    raise UsageError(f"{plain(word)} has no value", hint="copy the whole command")
                argument, index = words[index], index + 1
                _put(out, name, argument)
            elif name in VALUED or name in ALONE:
                _put(out, name, value or "")
            else:
                _unknown(out, word, alone="=" in word or "".join(words[index : index + 1])[:1] in {"", "-"})
    if index >= len(words):
        raise UsageError("docker run has no image", hint="copy the whole command")
    out.image, out.words = words[index], words[index + 1 :]
    out.unclear = _unset(out.image) or out.unclear
    if out.user is not None and out.cap_add and not is_root(out.user):
        out.notes.append(f"--user {shown(out.user)}: with --cap-add ranks run as the image's user")
        out.user = None
    return out


def _unknown(out: Container, word: str, *, alone: bool) -> None:
    """Note an option that Docker does not have, or not yet; unless it is ``alone``, the next word may be its value."""
    problem = f"{shown(word)}: unknown option of docker run"
    out.notes.append(problem)
    if not alone:
        out.unclear = (problem, f"write {plain(word)}=VALUE if it has a value, or remove it")


def _unset(image: str) -> tuple[str, str] | None:
    """Why an image that the text does not set may be another word, and what to type; None for one that it sets."""
    if not unknown(image):
        return None
    problem = f"what follows the options of docker run is {shown(image)}, which the text does not set"
    name = unknown(image)[0]
    return problem, f"add --define {name}=VALUE" if name.isidentifier() else "write what it becomes"


def _options(word: str) -> list[tuple[str, str | None]]:
    """Options of one word, full names: ``-it`` are two, ``-p8000:8000`` and ``--ipc=host`` have their value."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return [(name, value if equals else None)]
    out: list[tuple[str, str | None]] = []
    for at, letter in enumerate(word[1:], start=1):
        name = SHORT.get(letter, letter)
        if name in VALUED:
            value = word[at + 1 :].removeprefix("=")
            return [*out, (name, value or None)]
        out.append((name, None))
    return out


def _put(out: Container, name: str, value: str) -> None:
    if name == "env":
        variable, equals, text = value.partition("=")
        out.env[variable] = text if equals else None
    elif name in {"volume", "mount"}:
        _volume(out, name, value)
    elif name == "entrypoint":
        out.entrypoint = value
    elif name == "user" and re.fullmatch(USER, value):
        out.user = value
    elif name == "name":
        out.name = plain(value)
    elif name == "cap-add":
        out.cap_add.append(value.upper().removeprefix("CAP_"))
    elif name == "publish":
        _publish(out, value)
    elif name not in GIVEN and not _harmless(name, value) and not _granted(out, name, value):
        why = REFUSED.get(name, "a playbook has no such key")
        out.notes.append(f"{shown(f'--{name} {value}').strip()}: {why}")


def _harmless(name: str, value: str) -> bool:
    """Whether every rank has what the option asks for anyway."""
    return name == "ipc" and value in {"host", ""}


def _granted(out: Container, name: str, value: str) -> bool:
    """Take a device or a limit, unless every rank has it; whether a playbook can have it."""
    if name == "device" and (found := _DEVICE.fullmatch(value)) and found[2] in {None, found[1]}:
        if not found[1].startswith(("/dev/infiniband", "/dev/nvidia")) and found[1] not in out.devices:
            out.devices.append(found[1])
        return True
    if name == "ulimit" and (limit := _limit(value)) is not None:
        if limit != (limit[0], _LIMITS.get(limit[0])):
            out.ulimits[limit[0]] = limit[1]
        return True
    return False


def _limit(value: str) -> tuple[str, int] | None:
    """Name and number of a limit; None for another soft than hard one, or a name that Docker does not have."""
    name, _, numbers = value.partition("=")
    each = set(numbers.split(":"))
    if name not in get_args(Ulimit) or len(each) != 1 or not re.fullmatch(r"-1|\d{1,18}", number := each.pop()):
        return None
    return name, int(number)


def _publish(out: Container, value: str) -> None:
    parts = value.partition("/")[0].split(":")
    if len(parts) > 1 and parts[-2:] != ["8000", "8000"]:
        out.notes.append(f"--publish {shown(value)}: write api.port: {shown(parts[-2])} in the inventory")


def _volume(out: Container, name: str, value: str) -> None:
    if name == "mount":
        try:
            parts = next(csv.reader([value]), [])
        except csv.Error:
            problem = f"--mount {shown(' '.join(value.split()))} has a line break, which Docker refuses"
            raise UsageError(problem, hint="write the option on one line, without blanks") from None
        fields = {part.partition("=")[0]: part.partition("=")[2] or "true" for part in parts}
        source = fields.get("source", fields.get("src", ""))
        target = fields.get("target", fields.get("destination", fields.get("dst", "")))
        read_only = fields.get("readonly", fields.get("ro", "false")) != "false"
        if fields.get("type", "volume") != "bind":
            source = ""
    else:
        parts = value.split(":")
        source, target = (parts[0], parts[1]) if len(parts) > 1 else ("", parts[0])
        read_only = "ro" in ",".join(parts[2:]).split(",")
    # `$PWD/start.sh` may be a script of the text
    if (source.startswith(("/", "~")) or unknown(source)[:1] in (["PWD"], ["pwd"])) and target.startswith("/"):
        out.volumes.append(Volume(source, target, read_only))
    else:
        out.notes.append(f"--{name} {shown(value)}: a playbook mounts directories by their full path, as ~/data")
