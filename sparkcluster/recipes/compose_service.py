"""A service of a Compose file as the options of a ``docker run`` command.

After https://docs.docker.com/reference/compose-file/services
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Iterator

from sparkcluster.recipes.compose_node import Node
from sparkcluster.recipes.shell import shown

MAX_EXTENDS = 16

# Keys of a service with a value, and the option of `docker run` that means the same.
_SCALARS = {
    "cgroup": "cgroupns", "cgroup_parent": "cgroup-parent", "container_name": "name", "cpu_period": "cpu-period",
    "cpu_quota": "cpu-quota", "cpu_shares": "cpu-shares", "cpus": "cpus", "cpuset": "cpuset-cpus", "domainname":
    "domainname", "hostname": "hostname", "ipc": "ipc", "isolation": "isolation", "mac_address": "mac-address",
    "mem_limit": "memory", "mem_reservation": "memory-reservation", "mem_swappiness": "memory-swappiness",
    "memswap_limit": "memory-swap", "network_mode": "network", "oom_score_adj": "oom-score-adj", "pid": "pid",
    "pids_limit": "pids-limit", "platform": "platform", "pull_policy": "pull", "restart": "restart", "runtime":
    "runtime", "shm_size": "shm-size", "stop_grace_period": "stop-timeout", "stop_signal": "stop-signal", "user":
    "user", "userns_mode": "userns", "uts": "uts", "working_dir": "workdir",
}  # fmt: skip
# Those with a list of values, or with one.
_LISTS = {
    "cap_add": "cap-add", "cap_drop": "cap-drop", "device_cgroup_rules": "device-cgroup-rule", "devices": "device",
    "dns": "dns", "dns_opt": "dns-option", "dns_search": "dns-search", "env_file": "env-file", "group_add":
    "group-add", "ports": "publish", "security_opt": "security-opt", "tmpfs": "tmpfs", "volumes": "volume",
    "volumes_from": "volumes-from",
}  # fmt: skip
_ALONE = {
    "init": "init", "oom_kill_disable": "oom-kill-disable", "privileged": "privileged", "read_only": "read-only",
    "stdin_open": "interactive", "tty": "tty", "use_api_socket": "use-api-socket",
}  # fmt: skip
# What says nothing of the container that a rank would need.
_QUIET = frozenset(
    {
        "annotations", "attach", "depends_on", "expose", "extends", "external_links", "extra_hosts", "label_file",
        "labels", "links", "logging", "networks", "profiles", "pull_refresh_after", "scale",
    }
)  # fmt: skip


Option = tuple[str, str | None]


@dataclasses.dataclass(slots=True)
class Service:
    """A service.

    Attributes:
        name: of the service.
        node: its section.
        options: options of ``docker run`` by the key that says them; None for those that stand alone.
        image: its image; None if it has none or is only built.
        builds: whether its image is built.
        command: instead of the image's; None to keep it.
        entrypoint: likewise.
        profiles: with which alone Compose starts it.
        notes: what was not carried over.
        elsewhere: the file from which it takes further keys.
    """

    name: str
    node: Node
    options: dict[str, list[Option]] = dataclasses.field(default_factory=dict)
    image: str | None = None
    builds: bool = False
    command: list[str] | None = None
    entrypoint: list[str] | None = None
    profiles: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    elsewhere: str | None = None

    def arguments(self) -> list[str]:
        """The words after ``docker run`` that start the same container.

        Raises:
            UsageError: it has no image.
        """
        if self.elsewhere is not None:
            raise self.node.error(
                f"extends a service of {shown(self.elsewhere)}, which is another file",
                "write the keys of that service here",
            )
        if self.image is None:
            raise self.node.error("has no image", "build its image, and write image: …")
        out = [word for name, value in self._options() for word in (f"--{name}", value) if word is not None]
        words = list(self.command or [])
        if self.entrypoint is not None:
            words = [*self.entrypoint, *words]
            if not words:
                raise self.node.error("has an empty entrypoint and no command", "write command: …")
            out += ["--entrypoint", words.pop(0)]
        return [*out, "--", self.image, *words]

    def _options(self) -> Iterator[Option]:
        for key, options in self.options.items():
            # A service that extends another replaces what that mounts at the same path.
            last = {target(option): option for option in options} if key == "volumes" else {}
            yield from (option for option in options if not last or last[target(option)] == option)


def read(name: str, services: dict[str, Node], seen: tuple[str, ...] = ()) -> Service:
    """A service with those of the same file that it extends.

    Raises:
        UsageError: a key has a value that Compose refuses.
    """
    node = services[name]
    entries = node.entries()
    service = Service(name, node)
    extends = entries.get("extends")
    if extends is not None:
        service = _base(extends, services, (*seen, name))
        service.name, service.node = name, node
    for key, value in entries.items():
        if value.value is not None or key in {"command", "entrypoint"}:
            _put(service, key, value)
    return service


def _base(extends: Node, services: dict[str, Node], seen: tuple[str, ...]) -> Service:
    entries = extends.entries() if isinstance(extends.value, dict) else {"service": extends}
    name = entries["service"].text() if "service" in entries else ""
    if "file" in entries:
        return Service(name, extends, elsewhere=entries["file"].text())
    if name not in services:
        raise extends.error(f"names the service {shown(name)}, which the file does not have")
    if name in seen:
        raise extends.error("extends itself")
    if len(seen) > MAX_EXTENDS:
        raise extends.error(f"is the {len(seen)}th service that extends another in turn")
    return read(name, services, seen)


def _put(service: Service, key: str, node: Node) -> None:
    if key in _SCALARS:
        _scalar(service, key, node)
    elif key in _LISTS:
        _add(service, key, [option for item in node.items() for option in _listed(service, key, item)])
    elif key in _ALONE:
        service.options[key] = [(_ALONE[key], None)] if node.text() == "true" else []
    elif key == "profiles":
        service.profiles += [item.text() for item in node.items()]
    elif key in _SPECIAL:
        _SPECIAL[key](service, node)
    elif key not in _QUIET and not key.startswith("x-"):
        service.notes.append(f"{shown(key)}: a playbook has no such key")


def _scalar(service: Service, key: str, node: Node) -> None:
    value = node.text()
    if key == "network_mode" and value.partition(":")[0] in {"none", "service", "container"}:
        service.notes.append(f"network_mode {shown(value)}: ranks use the node's own network")
    if key == "restart" and value in {"no", "false", ""}:
        service.options.pop(key, None)
        return
    service.options[key] = [(_SCALARS[key], value)]


def _listed(service: Service, key: str, item: Node) -> Iterator[Option]:
    option = _LISTS[key]
    if not isinstance(item.value, dict):
        value = item.text()
        # GPUs by the container device interface.
        if not (key == "devices" and value.startswith("nvidia.com/gpu=")):
            yield option, value
        return
    long = {name: node for name, node in item.entries().items() if node.value is not None}
    texts = {name: node.text() for name, node in long.items() if not isinstance(node.value, dict | list)}
    if key == "volumes":
        fields = [("type", texts.get("type", "volume")), ("source", texts.get("source", ""))]
        fields += [("target", texts.get("target", "")), ("readonly", texts.get("read_only", "false"))]
        yield "mount", _row([f"{name}={value}" for name, value in fields])
    elif key == "ports":
        parts = [texts[name] for name in ("host_ip", "published", "target") if name in texts]
        yield option, ":".join(parts) + ("/udp" if texts.get("protocol") == "udp" else "")
    elif key == "env_file":
        yield option, texts.get("path", "")
    elif key == "devices":
        parts = [texts[name] for name in ("source", "target", "permissions") if name in texts]
        yield option, ":".join(parts)
    else:
        service.notes.append(f"{key}: {shown(str(item.value))}: not read")


def _named(service: Service, node: Node) -> None:
    service.image = node.text()


def _built(service: Service, _node: Node) -> None:
    service.builds = True


def _command(service: Service, node: Node) -> None:
    service.command = node.words()


def _entrypoint(service: Service, node: Node) -> None:
    service.entrypoint = node.words()


def _environment(service: Service, node: Node) -> None:
    """``NAME=value`` of a mapping or list; ``NAME`` where the caller's value counts."""
    if isinstance(node.value, list):
        texts = [item.text() for item in node.items()]
    else:
        named = node.entries().items()
        texts = [name if value.value is None else f"{name}={value.text()}" for name, value in named]
    _add(service, "environment", [("env", text) for text in texts])


def _ulimits(service: Service, node: Node) -> None:
    for name, value in node.entries().items():
        limits = value.entries() if isinstance(value.value, dict) else {"soft": value}
        texts = [limits[key].text() for key in ("soft", "hard") if key in limits]
        _add(service, "ulimits", [("ulimit", f"{name}={':'.join(dict.fromkeys(texts))}")])


def _sysctls(service: Service, node: Node) -> None:
    items = node.entries().items() if isinstance(node.value, dict) else ()
    texts = [f"{name}={value.text()}" for name, value in items] or [item.text() for item in node.items()]
    _add(service, "sysctls", [("sysctl", text) for text in texts])


def _healthcheck(service: Service, _node: Node) -> None:
    service.notes.append("healthcheck: left out: sparkcluster verifies the answer itself")


def _add(service: Service, key: str, options: list[Option]) -> None:
    service.options[key] = [*service.options.get(key, []), *options]


def _gpus(service: Service, node: Node, where: str = "gpus") -> None:
    """Reservations of devices: a Spark has one GPU, so that asking for it says nothing."""
    for item in node.items():
        if not isinstance(item.value, dict):
            if item.text() not in {"all", "1"}:
                service.notes.append(f"{where}: {shown(item.text())}: each Spark has one GPU")
            continue
        entries = item.entries()
        wanted = [entry.text() for entry in entries["capabilities"].items()] if "capabilities" in entries else ["gpu"]
        count = entries["count"].text() if entries.get("count") and entries["count"].value is not None else "all"
        ids = [entry.text() for entry in entries["device_ids"].items()] if "device_ids" in entries else []
        driver = entries["driver"].text() if "driver" in entries else "nvidia"
        if "gpu" not in wanted or driver not in {"nvidia", "cdi"}:
            service.notes.append(f"{where}: {shown(driver)} {shown(', '.join(wanted))}: ranks get the node's GPU")
        elif count not in {"all", "-1", "1"} or len(ids) > 1:
            count = str(len(ids)) if ids else count
            service.notes.append(
                f"{where}: {shown(count)} GPUs: each Spark has one; tensor_parallel says how many Sparks"
            )
        elif ids and ids[0] not in {"0", "nvidia.com/gpu=0", "nvidia.com/gpu=all"}:
            service.notes.append(f"{where}: GPU {shown(ids[0])}: each Spark has one, which is GPU 0")


def _deploy(service: Service, node: Node) -> None:
    for key, value in node.entries().items():
        if key == "resources":
            _resources(service, value)
        elif key == "replicas" and value.text() not in {"0", "1"}:
            service.notes.append(f"deploy.replicas {shown(value.text())}: list more groups in the inventory")
        elif key == "restart_policy":
            service.options["deploy.restart_policy"] = [("restart", "")]
        elif key not in {"replicas", "mode", "labels", "endpoint_mode"}:
            service.notes.append(f"deploy.{shown(key)}: a playbook has no such key")


def _resources(service: Service, node: Node) -> None:
    names = {"memory": "memory", "cpus": "cpus", "pids": "pids-limit"}
    for kind, section in node.entries().items():
        for key, value in section.entries().items():
            where = f"deploy.resources.{kind}.{key}"
            if key == "devices":
                _gpus(service, value, where)
            elif key in names and kind == "limits":
                service.options[where] = [(names[key], value.text())]
            elif key not in names:
                service.notes.append(f"{shown(where)}: a playbook has no such key")


def target(option: Option) -> str:
    """Where in the container a volume is mounted."""
    name, value = option[0], option[1] or ""
    if name == "mount":
        return next((part.partition("=")[2] for part in value.split(",") if part.startswith("target=")), value)
    parts = value.split(":")
    return parts[1] if len(parts) > 1 else parts[0]


def _row(fields: list[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(fields)
    return out.getvalue()


_SPECIAL: dict[str, Callable[[Service, Node], None]] = {
    "build": _built,
    "command": _command,
    "deploy": _deploy,
    "entrypoint": _entrypoint,
    "environment": _environment,
    "gpus": _gpus,
    "healthcheck": _healthcheck,
    "image": _named,
    "sysctls": _sysctls,
    "ulimits": _ulimits,
}
