"""What ``setup`` would change on a node: the difference between what a survey found and what is wanted. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Interface
from pathlib import PurePosixPath
from shlex import quote

from sparkcluster.errors import SetupError
from sparkcluster.facts.base import read
from sparkcluster.facts.survey import FileState, JournalEntry, Survey
from sparkcluster.setup import actions as do
from sparkcluster.setup.steps import BLOCK, HEADLESS, LIMITS, PERFTEST, SYSCTL, SYSCTLS, selected
from sparkcluster.topology.netplan import MTU, NETPLAN, is_plain

# First part of the paths that belong to the system, below which no cache of a user is.
_SYSTEM = {"bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sbin", "sys", "usr", "var"}
AUTHORIZED_KEYS = ".ssh/authorized_keys"
HOSTS, GROUP, DAEMON = "/etc/hosts", "/etc/group", "/etc/docker/daemon.json"
# Packages that unattended upgrades would replace: kernel and driver of Ubuntu and of DGX OS.
HELD = ("linux-image-*", "linux-headers-*", "linux-modules-*", "linux-nvidia*", "nvidia-driver-*", "nvidia-kernel-*")

USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]{1,100}(:[a-z0-9]{1,20})?")
_KEY = re.compile(r"[a-z0-9@.-]{1,100} [A-Za-z0-9+/]{16,16384}={0,2}( [^\x00-\x1f\x7f]*)?")
_HOSTS_LINE = re.compile(r"[0-9a-f.:]{2,45}( [A-Za-z0-9_.:%-]{1,255})+")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a node is to be like.

    Attributes:
        user: name of the login.
        key: the operator's public key, a line of authorized_keys; empty if there is none, None to leave that file.
        netplan: text of the netplan file; None to leave the network.
        addresses: what that text gives, with prefix, by interface.
        hosts: lines of the block in /etc/hosts; empty to leave that file.
        options: names of the options that are switched on.
    """

    user: str
    key: str | None = None
    netplan: str | None = None
    addresses: Mapping[str, IPv4Interface] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    options: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Change:
    """What one step would change on one node.

    Attributes:
        found, wanted: one line each.
        actions: empty where it is blocked.
        later: when it takes effect, if not at once.
        blocked: why it cannot be done now.
        hint: what to type about that.
    """

    node: str
    step: str
    found: str
    wanted: str
    actions: tuple[do.Action, ...] = ()
    later: str | None = None
    blocked: str | None = None
    hint: str | None = None


def requests(only: Collection[str] | None = None, options: Collection[str] = ()) -> dict[str, list[str]]:
    """What a survey has to read for ``changes`` with the same steps; ``held`` is not empty if that is to be read."""
    return {
        "files": [f"~/{AUTHORIZED_KEYS}", NETPLAN, SYSCTL, LIMITS, HOSTS, GROUP, DAEMON],
        "sysctls": [*SYSCTLS, "vm.dirty_ratio"],
        "packages": [PERFTEST, *HELD],
        "held": [step.name for step in selected(only, options) if step.name == "hold"],
    }


def changes(node: str, survey: Survey, wanted: Wanted, only: Collection[str] | None = None) -> list[Change]:
    """What is not as wanted, in the order of the steps; a step that is as wanted gives none.

    Args:
        node: its name in the inventory.
        survey: what was found; it was asked for ``requests``.
        wanted: what it is to be like.
        only: names of the steps to look at; None for all.

    Raises:
        UsageError: a step is unknown.
        SetupError: the node's answer, or what is wanted, cannot go into a script that root runs.
    """
    _check(node, survey, wanted)
    found = []
    for step in selected(only, wanted.options):
        change = _DIFFERENCES[step.name](Change(node, step.name, "", ""), survey, wanted)
        if change is None:
            continue
        if step.disruptive and survey.ranks and not change.blocked:
            change = replace(
                change,
                actions=(),
                blocked=f"ranks run on it: {', '.join(survey.ranks)}",
                hint="sparkcluster down INVENTORY",
            )
        found.append(change)
    return found


def _check(node: str, survey: Survey, wanted: Wanted) -> None:
    """Whatever goes into a script is quoted; what could be no name at all is refused."""
    for user in (survey.user, wanted.user):
        if not USER.fullmatch(user):
            raise SetupError(f"{user!r} is not the name of a user", node=node, step="setup")
    if not PurePosixPath(survey.home).is_absolute() or ".." in PurePosixPath(survey.home).parts:
        raise SetupError(f"{survey.home!r} is not a home directory", node=node, step="setup")
    refused = [
        *(name for name in wanted.addresses if not is_plain(name)),
        *(line for line in wanted.hosts if not _HOSTS_LINE.fullmatch(line)),
        *([wanted.key] if wanted.key and not _KEY.fullmatch(wanted.key) else ()),
    ]
    if refused:
        raise SetupError(f"{refused[0]!r} cannot be set up", node=node, step="setup")
    if wanted.netplan is not None and not wanted.netplan.endswith("\n"):
        raise SetupError("the netplan text has no line end at its end", node=node, step="setup")


# --------------------------------------------------------------------------------------------------- each step


def _ssh_key(change: Change, survey: Survey, wanted: Wanted) -> Change | None:
    if wanted.key is None:
        return None
    if not wanted.key:
        hint = "ssh-keygen -t ed25519, then: sparkcluster setup INVENTORY --only ssh-key"
        return replace(change, blocked="left out: you have no SSH key, and all other commands log in by key", hint=hint)
    path = f"{survey.home}/{AUTHORIZED_KEYS}"
    state = survey.files.get(path, FileState())
    if _illegible(state):
        return _blocked_by_file(change, survey, path)
    lines = (state.text or "").splitlines()
    blob = wanted.key.split(" ")[1]
    present = any(blob in line.split() for line in lines if not line.lstrip().startswith("#"))
    # sshd ignores a file that others may write (sshd_config(5), StrictModes).
    writable = bool((state.mode or 0) & 0o022)
    if present and not writable:
        return None
    return replace(
        change,
        found="others may write authorized_keys" if present else "your key is not in authorized_keys",
        wanted=f"{wanted.user} accepts your key",
        actions=(do.AddKey(path, wanted.key),),
    )


def _docker_group(change: Change, survey: Survey, wanted: Wanted) -> Change | None:
    listed = members(survey, "docker") or ()
    if survey.uid == 0 or "docker" in survey.groups or wanted.user in listed:
        return None
    change = replace(change, found=f"{wanted.user} is not in the group docker", wanted=f"{wanted.user} is in it")
    if survey.docker is None:
        return _blocked_by_docker(change)
    return replace(change, actions=(do.JoinGroup(wanted.user, "docker"),), later=f"when {wanted.user} logs in again")


def _nvidia_runtime(change: Change, survey: Survey, _: Wanted) -> Change | None:
    due = any(entry.kind == "restart" for entry in survey.journal)
    if "nvidia" in survey.runtimes and not due:
        return None
    found = "Docker was not restarted since" if due else "Docker has no runtime nvidia"
    change = replace(change, found=found, wanted="Docker has the runtime nvidia")
    if survey.docker is None:
        return _blocked_by_docker(change)
    return replace(change, actions=(do.ConfigureRuntime(),))


def _blocked_by_docker(change: Change) -> Change:
    return replace(change, blocked="Docker is not installed", hint="sudo apt-get install -y docker.io")


def _blocked_by_file(change: Change, survey: Survey, path: str) -> Change:
    reason = _illegible(survey.files[path])
    hint = f"make it UTF-8 text of at most 1 MiB that {survey.user} may read: ls -l {quote(path)}   on {change.node}"
    return replace(change, blocked=f"{path} cannot be read: {reason}", hint=hint)


def _sysctl(change: Change, survey: Survey, _: Wanted) -> Change | None:
    text = "".join(f"{name} = {value}\n" for name, value in SYSCTLS.items())
    file = do.WriteFile(SYSCTL, text)
    differing = {name: value for name, value in SYSCTLS.items() if survey.sysctls.get(name) != value}
    if _is_written(survey, file) and not differing:
        return None
    values = ", ".join(f"{name}={survey.sysctls.get(name) or '?'}" for name in differing)
    return replace(
        change,
        found=values or f"{SYSCTL} is {_state(survey, SYSCTL)}",
        wanted=", ".join(f"{name}={value}" for name, value in SYSCTLS.items()),
        actions=(file, *(do.SetSysctl(name, value) for name, value in SYSCTLS.items())),
    )


def _limits(change: Change, survey: Survey, wanted: Wanted) -> Change | None:
    file = do.WriteFile(LIMITS, f"{wanted.user} - memlock unlimited\n")
    if _is_written(survey, file):
        return None
    return replace(
        change,
        found=f"{LIMITS} is {_state(survey, LIMITS)}",
        wanted=f"{wanted.user} may lock memory without a limit",
        actions=(file,),
        later=f"when {wanted.user} logs in again",
    )


def _hf_cache(change: Change, survey: Survey, wanted: Wanted) -> Change | None:
    if not survey.foreign:
        return None
    path = PurePosixPath(survey.hf_home)
    count = f"{survey.foreign} file{'s' * (survey.foreign > 1)}"
    change = replace(change, found=f"{count} of root in {path}", wanted=f"all of it belongs to {wanted.user}")
    home = PurePosixPath(survey.home)
    top = path.parts[1:2]
    elsewhere = bool(_SYSTEM & set(top)) or (top == ("home",) and home not in path.parents)
    if path in (home, *home.parents) or elsewhere:
        return replace(change, blocked=f"{path} is more than a cache", hint="set hf_home in the inventory")
    return replace(change, actions=(do.Own(str(path), wanted.user),))


def _hosts(change: Change, survey: Survey, wanted: Wanted) -> Change | None:
    if not wanted.hosts:
        return None
    text = "".join(f"{line}\n" for line in wanted.hosts)
    state = survey.files.get(HOSTS, FileState())
    if _illegible(state):
        return _blocked_by_file(change, survey, HOSTS)
    current = state.text or ""
    if f"{BLOCK[0]}\n{text}{BLOCK[1]}\n" in current:
        return None
    names = [line.split(" ")[1] for line in wanted.hosts]
    for name in names:
        if ":" in name:
            hint = f"give the node with `host: {name.rpartition('-')[0]}` a `name:` in the inventory"
            return replace(change, blocked=f"{name} is no name of a host", hint=hint)
    return replace(
        change,
        found=f"{HOSTS} has other rails" if BLOCK[0] in current else f"{HOSTS} has no rails",
        wanted=f"{names[0]} to {names[-1]} resolve" if len(names) > 1 else f"{names[0]} resolves",
        actions=(do.HostsBlock(text),),
    )


def _perftest(change: Change, survey: Survey, _: Wanted) -> Change | None:
    if survey.packages.get(PERFTEST) is not None:
        return None
    return replace(
        change, found="perftest is not installed", wanted="perftest is installed", actions=(do.Install(PERFTEST),)
    )


def _clock(change: Change, survey: Survey, _: Wanted) -> Change | None:
    if survey.ntp:
        return None
    change = replace(change, found="the clock is not synchronized", wanted="NTP synchronizes the clock")
    if survey.ntp is None:
        return replace(
            change, found="timedatectl does not say", blocked="NTP cannot be switched on", hint="timedatectl"
        )
    return replace(change, actions=(do.SetNtp(),))


def _headless(change: Change, survey: Survey, _: Wanted) -> Change | None:
    if survey.default_target == HEADLESS:
        return None
    return replace(
        change,
        found=f"it boots to {survey.default_target or 'an unknown target'}",
        wanted=f"it boots to {HEADLESS}",
        actions=(do.SetDefaultTarget(HEADLESS),),
        later="at the next boot",
    )


def _hold(change: Change, survey: Survey, _: Wanted) -> Change | None:
    installed = sorted(name for name, version in survey.packages.items() if version and name != PERFTEST)
    odd = [name for name in installed if not PACKAGE.fullmatch(name)]
    if odd:
        raise SetupError(f"{odd[0]!r} is not the name of a package", node=change.node, step="hold")
    free = [name for name in installed if name not in survey.held]
    if installed and not free:
        return None
    change = replace(change, found=f"not held: {', '.join(free)}", wanted="kernel and driver are held")
    if not installed:
        return replace(change, found="no such package", blocked="neither kernel nor driver is a package here")
    return replace(change, actions=(do.Hold(tuple(free)),))


def _netplan(change: Change, survey: Survey, wanted: Wanted) -> Change | None:
    if wanted.netplan is None:
        return None
    addresses = {name: str(address) for name, address in wanted.addresses.items()}
    missing = _missing(survey, addresses)
    if not missing and _is_written(survey, do.WriteFile(NETPLAN, wanted.netplan, 0o600), "netplan"):
        return None
    return replace(
        change,
        found="; ".join(missing) or f"{NETPLAN} is {_state(survey, NETPLAN)}",
        wanted=", ".join(f"{name} {address}" for name, address in addresses.items()) + f", MTU {MTU}",
        actions=(do.Netplan(wanted.netplan, addresses),),
    )


_DIFFERENCES: Mapping[str, Callable[[Change, Survey, Wanted], Change | None]] = {
    "ssh-key": _ssh_key,
    "docker-group": _docker_group,
    "nvidia-runtime": _nvidia_runtime,
    "sysctl": _sysctl,
    "limits": _limits,
    "hf-cache": _hf_cache,
    "hosts": _hosts,
    "perftest": _perftest,
    "clock": _clock,
    "headless": _headless,
    "hold": _hold,
    "netplan": _netplan,
}


# ------------------------------------------------------------------------------------------------ what is there


def _is_written(survey: Survey, file: do.WriteFile, kind: str = "file") -> bool:
    """Whether a file is as wanted; where it cannot be read, whether the journal says that this was written last."""
    state = survey.files.get(file.path)
    digest = hashlib.sha256(file.text.encode()).hexdigest()
    if state is None or state.unread:
        entry = _last(survey.journal, kind, file.path)
        return entry is not None and entry.after == digest
    return (state.sha256, state.mode, state.owner) == (digest, file.mode, "root")


def _state(survey: Survey, path: str) -> str:
    state = survey.files.get(path)
    if state is None or state.unread:
        return "unknown"
    return "another" if state.sha256 else "missing"


def _illegible(state: FileState) -> str | None:
    """Why a file cannot be judged by its lines, None where it can."""
    return state.unread or ("not UTF-8 text" if state.sha256 and state.text is None else None)


def _last(journal: Sequence[JournalEntry], kind: str, target: str) -> JournalEntry | None:
    """The last entry of root's journal about a target."""
    return next((each for each in reversed(journal) if each.root and (each.kind, each.target) == (kind, target)), None)


def members(survey: Survey, group: str) -> list[str] | None:
    """Members of a group by /etc/group; None if that has no such group."""
    lines = (survey.files.get(GROUP, FileState()).text or "").splitlines()
    fields = [line.split(":") for line in lines]
    return next((each[3].split(",") for each in fields if len(each) == 4 and each[0] == group), None)


def _missing(survey: Survey, addresses: Mapping[str, str]) -> list[str]:
    """Which addresses and MTUs a node does not have, in words."""
    interfaces = {each.name: each for each in read(survey.interfaces) or ()}
    found = []
    for name, address in addresses.items():
        interface = interfaces.get(name)
        if interface is None:
            found.append(f"there is no interface {name}")
        elif address not in interface.addresses:
            found.append(f"{name} has {', '.join(interface.addresses) or 'no address'}")
        elif interface.mtu != MTU:
            found.append(f"{name} has MTU {interface.mtu}")
    return found
