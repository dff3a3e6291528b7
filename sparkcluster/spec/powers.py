"""What a playbook can do on the nodes, from the files alone; what of it the inventory must permit; when ``up`` asks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import posixpath
import re
from collections.abc import Iterator

from sparkcluster import engines
from sparkcluster.spec import Spec
from sparkcluster.spec.document import KeyPath, shown
from sparkcluster.spec.inventory import Inventory, Permit
from sparkcluster.spec.playbook import Playbook

WRITABLE = ":rw"
"""Ends an entry of ``permit.mounts`` that may be written."""

# Access to these is control of the node, and no container needs them.
_SYSTEM = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var/lib/containerd",
    "/var/lib/docker", "/var/run", "/var/spool/cron",
)  # fmt: skip
_OWN = "~/.cache/sparkcluster/models/"
_HOME = re.compile(r"~|/root|/home/[^/]+")
_PERMIT = {"read": "mounts", "write": "mounts", "capability": "capabilities", "secret": "secrets"}
# As NAME=VALUE in lower case with dashes; an engine has more: ``Engine.code``.
_CODE = r"^.*-plugins?=|\.(py|so)\b"
# Variables, written likewise, that set how a program computes and nothing else; of an engine: ``Engine.tuning``.
_TUNING = r"(nccl|torch|torchdynamo|cuda|omp|hf-hub|tokenizers)-|pytorch-(cuda-)?alloc-conf="
_NO_TUNING = r"^hf-hub-offline=(?!1$)|^[^=]*-(home|dir|path|base|root|file|hook|librar(y|ies))="


@dataclasses.dataclass(frozen=True, slots=True)
class Power:
    """One thing that a playbook can do: whether the inventory permits it, None if it need not; and why nobody may."""

    kind: str
    what: str
    path: KeyPath = ()
    permitted: bool | None = None
    refused: str | None = None
    asks: bool = False
    target: str | None = None

    @property
    def text(self) -> str:
        """What it is, with the path in the container where it has one."""
        return f"{self.what} -> {self.target}" if self.target else self.what


def of(playbook: Playbook, inventory: Inventory) -> list[Power]:
    """What ``playbook`` can do on the nodes of ``inventory``."""
    image = playbook.image if inventory.runtime.kind == "docker" else "none: runs on the nodes without a container"
    found = [Power("network", "everything that the node can reach (host network)"), Power("image", str(image))]
    wanted = [*_paths(playbook, inventory)]
    for index, name in enumerate(playbook.container.cap_add):
        wanted.append(("capability", name, ("container", "cap_add", index), name == "SYS_NICE", name != "SYS_NICE"))
    wanted += [("secret", name, ("secrets", index), False, True) for index, name in enumerate(playbook.secrets)]
    targets: dict[KeyPath, str] = {("mounts", at, "source"): each.target for at, each in enumerate(playbook.mounts)}
    for kind, what, path, free, asks in wanted:
        refused = never(what, inventory) if _PERMIT[kind] == "mounts" else None
        permitted = None if free or refused else _permitted(kind, what, inventory.permit)
        found.append(Power(kind, what, path, permitted, refused, asks, targets.get(path)))
    if playbook.kept_caches and inventory.runtime.kind == "docker":
        caches = f"{normal(inventory.state_dir)}/caches"
        usual = engines.engine(playbook.engine).caches.items()
        found.append(Power("write", caches))
        unusual = (each for each in playbook.kept_caches if (each.name, each.target) not in usual)
        found += [Power("write", f"{caches}: {each.name}", asks=True, target=each.target) for each in unusual]
    code = [*(("setup", line) for line in playbook.setup), *_code(playbook)]
    code += [("command", " ".join(playbook.command))] if playbook.command else []
    return [*found, *(Power(kind, what, asks=True) for kind, what in code)]


def permit(powers: list[Power], inventory: Inventory) -> str | None:
    """The line of YAML by which the inventory would permit what it does not; None if that is nothing."""
    named = {key: list(entries) for key, entries in inventory.permit.model_dump().items()}
    missing = [power for power in powers if power.permitted is False]
    for power in missing:
        entry = power.what + (WRITABLE if power.kind == "write" else "")
        if entry not in named[_PERMIT[power.kind]]:
            named[_PERMIT[power.kind]].append(entry)
    keys = (f"{key}: {json.dumps(entries, ensure_ascii=False)}" for key, entries in named.items() if entries)
    return f"permit: {{{', '.join(keys)}}}" if missing else None


def lines(playbook: Playbook, inventory: Inventory) -> list[str]:
    """What ``playbook`` can do, as it is shown to people."""
    powers = of(playbook, inventory)
    out = ["this recipe can:"]
    for power in powers:
        what = shown(" ".join(power.text.split()), 240).removeprefix('"').removesuffix('"')
        out.append(f"{'!' if power.asks else ' '} {power.kind:<11}{what}")
    if any(power.asks for power in powers):
        out.append("  !: more than serving; you are asked once, unless the playbook is bundled")
    needed = permit(powers, inventory)
    return [*out, f"  it needs this in the inventory: {needed}"] if needed else out


def digest(spec: Spec) -> str:
    """SHA-256 of what is accepted: the playbook as composed, and whether it runs in a container."""
    written = spec.playbook.model_dump(mode="json", exclude_defaults=True)
    return hashlib.sha256(json.dumps([spec.inventory.runtime.kind, written], sort_keys=True).encode()).hexdigest()


def normal(path: str) -> str:
    """``path`` normalised; one that leads out of ~ is treated as ``/``."""
    normal = posixpath.normpath(path)
    if not normal.startswith(("/", "~")):
        return "/"
    return f"/{normal.lstrip('/')}" if normal.startswith("/") else normal


def never(path: str, inventory: Inventory | None = None, user: str | None = None) -> str | None:
    """Why no playbook may have ``path`` of a node, whatever is permitted; None where it may.

    ``user``: home directory of the node's user, where it is known.
    """
    place = normal(path)
    if place == "/" or place.endswith("/docker.sock") or any(_overlap(place, directory) for directory in _SYSTEM):
        return f"{place} would give the container control of the node"
    homes = place == "/home" or _HOME.fullmatch(place) or (user is not None and _within(normal(user), place))
    if homes or ".ssh" in place.split("/"):
        return f"{place} would give the container your SSH keys"
    home = normal(inventory.hf_home) if inventory else ""
    if inventory and any(_overlap(place, f"{home}/{token}") for token in ("token", "stored_tokens")):
        return f"{place} would give the container the hub's token"
    if inventory and _overlap(place, normal(inventory.state_dir)):
        return f"{place} would give the container the state of sparkcluster, with keys and leases"
    return "must not contain '..': behind a link it leads to another directory" if ".." in path.split("/") else None


def _paths(playbook: Playbook, inventory: Inventory) -> Iterator[tuple[str, str, KeyPath, bool, bool]]:
    """Kind, path, key, whether it needs no permission, and whether it is asked about."""
    hub = f"{normal(inventory.hf_home)}/hub"
    model = playbook.model.path and normal(playbook.model.path)
    if model:
        hidden = "/." in model.removeprefix(_OWN)
        weights = model.startswith((f"{hub}/", _OWN))
        free = model.startswith(f"{hub}/") or not (hidden or _overlap(model, hub))
        yield "read", model, ("model", "path"), free, not weights
    for index, mount in enumerate(playbook.mounts):
        source = normal(mount.source)
        weights = source.startswith(f"{hub}/") or (model is not None and _within(source, model))
        free = mount.read_only and weights
        # Always asked about: its target may be a program of the image.
        yield "read" if mount.read_only else "write", source, ("mounts", index, "source"), free, True


def _within(place: str, directory: str) -> bool:
    return place == directory or place.startswith(f"{directory}/")


def _overlap(one: str, other: str) -> bool:
    return _within(one, other) or _within(other, one)


def _permitted(kind: str, what: str, permit: Permit) -> bool:
    if kind in {"capability", "secret"}:
        return what in getattr(permit, _PERMIT[kind])
    named = [entry for entry in permit.mounts if kind == "read" or entry.endswith(WRITABLE)]
    return any(_within(what, normal(entry.removesuffix(WRITABLE))) for entry in named)


def _code(playbook: Playbook) -> Iterator[tuple[str, str]]:
    """Arguments and variables by which the engine runs code that is not its own, or may do so."""
    engine = engines.engine(playbook.engine)
    loads = re.compile(f"{_CODE}|{engine.code}")
    tunes = re.compile(rf"(?!{_NO_TUNING})({_TUNING}|{engine.tuning})[^/\s]*")
    for name, value in playbook.args.items():
        what = f"{name}={_text(value)}"
        # An escape of JSON may spell anything.
        if value not in (None, False) and ("\\u" in what or loads.search(what.replace("_", "-").lower())):
            yield "code", what
    for name, value in playbook.env.items():
        what = f"{name}={_text(value)}"
        written = what.replace("_", "-").lower()
        if loads.search(written) or not tunes.fullmatch(written) or "\\u" in what:
            yield "variable", what


def _text(value: object) -> str:
    """``value`` of an argument or variable as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
