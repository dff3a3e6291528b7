"""Reads what a machine is, what it is cabled to, and what ``setup`` changes of it.

Nothing is changed. Where sudo asks for no password, root reads the requested files that this user may not.
"""

from __future__ import annotations

import base64
import contextlib
import fnmatch
import hashlib
import os
import re
import stat
from collections.abc import Callable
from typing import Any

from sparkcluster.node import container_facts, neighbours, network, ranks, system
from sparkcluster.node.machine import GRACE_S, LIMIT_S, Machine, Readings, Unreadable, absolute, because, owner, unread
from sparkcluster.node.shared import LABEL_CLUSTER

_FILE_BYTES = 1 << 20
_JOURNAL_BYTES, _MOST_ENTRIES = 1 << 23, 1 << 16
_MOST_FOREIGN = 10000
_JOURNALS = (("/var/lib/sparkcluster/setup/journal", True), ("~/.local/state/sparkcluster/setup/journal", False))
_DEFAULT_TARGETS = ("/etc/systemd/system/default.target", "/usr/lib/systemd/system/default.target")
_DAEMON = "/etc/docker/daemon.json"
_ENTRY = re.compile(r"^([1-9]\d{0,8})\t(\d{1,11}(?:\.\d{1,9})?)((?:\t[^\t]*){6})$", re.ASCII)
_FIELDS = ("operator", "step", "kind", "target", "before", "after")
_KEY = re.compile(r"^[a-z0-9@.-]+ ([A-Za-z0-9+/]{4})+([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", re.ASCII)
# What root reads: containers of a cluster where this user may not ask Docker, then a line for each file.
_ROOT = """
[ -z "$1" ] || docker ps --filter "label=$1" --format 'rank {{.Names}}' 2>/dev/null
shift
for path do
  if [ ! -e "$path" ]; then echo absent
  elif [ ! -f "$path" ]; then echo other
  else printf 'file %%s ' "$(stat -Lc '%%a %%U' "$path")"; head -c %d "$path" | base64 -w 0; echo
  fi
done
""" % (_FILE_BYTES + 1)


def main(request: dict[str, Any], _lines: Any = None, machine: Machine | None = None) -> dict[str, Any]:
    """Return the document that ``facts.survey.Survey`` parses.

    Args:
        request: hf_home and state_dir; files (paths, whose last part may be a pattern), sysctls and packages whose
            state is wanted; held (whether the packages that apt holds are wanted, which takes apt up to a second);
            look_for (IPv4 addresses of other nodes' rails).
        machine: the node.
    """
    machine = machine or Machine()
    facts: dict[str, Any] = machine.identity()
    home = facts["home"]
    hf_home = absolute(str(request.get("hf_home") or "~/.cache/huggingface"), home)
    state_dir = absolute(str(request.get("state_dir") or "~/.local/state/sparkcluster"), home)
    paths = _paths(machine, [absolute(str(path), home) for path in request.get("files") or ()])

    readings = Readings(LIMIT_S, GRACE_S)
    value = readings.value
    readers: dict[str, Callable[[], Any]] = {
        "os": lambda: system.os_release(machine.text("/etc/os-release")),
        "dgx": lambda: system.dgx_release(machine.text("/etc/dgx-release")),
        "interfaces": lambda: network.interfaces(machine),
        "neighbours": lambda: neighbours.neighbours(machine, value("interfaces"), request.get("look_for") or ()),
        "unaddressed": lambda: neighbours.unaddressed(machine, value("interfaces")),
        "engine": lambda: container_facts.docker(machine),
        "containers": lambda: ranks.containers(machine, LABEL_CLUSTER),
        "processes": lambda: ranks.processes(machine, state_dir),
        "root": lambda: _root(machine, paths, facts["uid"], value),
        "host_keys": lambda: _host_keys(machine),
        "machine": lambda: system.machine_id(machine),
        "foreign": lambda: foreign(machine, hf_home, facts["uid"]),
        "sysctls": lambda: _sysctls(machine, request.get("sysctls", [])),
        "packages": lambda: _packages(machine, request.get("packages", [])),
        "default_target": lambda: _default_target(machine),
        "ntp": lambda: _ntp(machine),
        "journal": lambda: [
            each for path, root in _JOURNALS for each in journal(machine, absolute(path, home), root=root)
        ],
        "held": lambda: _held(machine) if request.get("held") else [],
    }
    facts.update(readings.all(readers))
    engine, root = facts.pop("engine"), facts.pop("root")
    usable = not unread(engine)
    facts["docker"] = engine["version"] if usable else _docker_program(machine)
    facts["runtimes"] = engine["runtimes"] if usable else _runtimes(machine)
    facts["sudo"], files, running = ("password", {}, []) if unread(root) else root
    facts["files"] = files or {path: {"unread": root["unread"]} for path in (paths if unread(root) else ())}
    for found in (facts.pop("processes"), facts.pop("containers")):
        running += [] if unread(found) else [each["name"] for each in found if each["state"] == "running"]
    facts["ranks"] = sorted(set(running))
    facts.update(reached_at=machine.reached_at(), hf_home=hf_home)
    return facts


# ------------------------------------------------------------------------------------------------------ files


def _paths(machine: Machine, wanted: list[str]) -> list[str]:
    """Absolute paths, with each pattern in a last part replaced by what matches it."""
    found: list[str] = []
    for path in wanted:
        folder, name = os.path.split(path)
        if "*" in name:
            with contextlib.suppress(Unreadable):
                found += [os.path.join(folder, each) for each in fnmatch.filter(machine.names(folder), name)]
        else:
            found.append(path)
    return list(dict.fromkeys(found))


def _root(
    machine: Machine, paths: list[str], uid: int, value: Callable[[str], Any]
) -> tuple[str, dict[str, Any], list[str]]:
    """How this user becomes root, the state of each file, and containers of a cluster that only root sees."""
    files: dict[str, Any] = {}
    denied = []
    for path in paths:
        try:
            files[path] = _file(machine, path)
        except PermissionError:
            denied.append(path)
        except OSError as error:
            is_absent = isinstance(error, (FileNotFoundError, NotADirectoryError))
            files[path] = {} if is_absent else {"unread": because(error)}
    files.update({path: {"unread": "permission denied"} for path in denied})
    if uid == 0:
        return "root", files, []
    label = LABEL_CLUSTER if unread(value("engine")) else ""
    try:
        exit_code, output = machine.run(["sudo", "-n", "--", "sh", "-c", _ROOT, "sh", label, *denied])
    except Unreadable as error:
        return "absent" if "not installed" in str(error) else "password", files, []
    if exit_code:
        return "password", files, []
    lines = output.splitlines()
    running = [line[5:] for line in lines if line.startswith("rank ")]
    files.update(zip(denied, (_told(line) for line in lines if not line.startswith("rank "))))  # noqa: B905
    return "free", files, running


def _file(machine: Machine, path: str) -> dict[str, Any]:
    handle = os.open(machine.at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            return {"unread": "not a regular file"}
        with open(handle, "rb", closefd=False) as file:
            return _state(stat.S_IMODE(found.st_mode), owner(found.st_uid), file.read(_FILE_BYTES + 1))
    finally:
        os.close(handle)


def _told(line: str) -> dict[str, Any]:
    """The state of a file from a line of root's."""
    words = line.split(" ")
    if words[0] == "absent":
        return {}
    try:
        return _state(int(words[1], 8), words[2], base64.b64decode(words[3], validate=True))
    except (IndexError, ValueError):
        return {"unread": "not a regular file" if words[0] == "other" else "sudo printed something else"}


def _state(mode: int, user: str, content: bytes) -> dict[str, Any]:
    if len(content) > _FILE_BYTES:
        return {"unread": "larger than %d bytes" % _FILE_BYTES}
    text = None
    if b"\0" not in content:
        with contextlib.suppress(UnicodeDecodeError):
            text = content.decode()
    return {"sha256": hashlib.sha256(content).hexdigest(), "mode": mode, "owner": user, "text": text}


def foreign(machine: Machine, path: str, uid: int) -> int:
    """Files and directories at and below ``path`` that root owns, counted to 10000; 0 for root.

    Those on other file systems do not count: ``setup`` leaves them alone.
    """
    if uid == 0:
        return 0
    listed = 'stat -c %%d "$1"; find "$1" -xdev -uid 0 -printf "%%y %%D\\n" 2>/dev/null | head -n %d' % _MOST_FOREIGN
    disk, *found = machine.run(["sh", "-c", listed, "sh", machine.at(path)])[1].splitlines() or [""]
    # A directory on which another disk is mounted is listed with that disk's number.
    return sum(not each.startswith("d") or each == "d " + disk for each in found)


def journal(machine: Machine, path: str, *, root: bool) -> list[dict[str, Any]]:
    """The entries of a journal of ``setup``; a line that is none is skipped, such as one that was not finished."""
    try:
        with open(os.open(machine.at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            text = file.read(_JOURNAL_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    found = []
    for line in text.split("\n"):
        entry = _ENTRY.match(line)
        if entry:
            fields = dict(zip(_FIELDS, entry.group(3)[1:].split("\t"), strict=True))
            found.append({"number": int(entry.group(1)), "root": root, "at": float(entry.group(2)), **fields})
    return found[-_MOST_ENTRIES // 2 :]


# --------------------------------------------------------------------------------------------------- settings


def _host_keys(machine: Machine) -> list[str]:
    """Public host keys as ``type base64``."""
    names = fnmatch.filter(machine.names("/etc/ssh"), "ssh_host_*_key.pub")
    keys = [_KEY.match(machine.text("/etc/ssh/" + name, "")) for name in names]
    return [key.group() for key in keys if key]


def _sysctls(machine: Machine, names: list[str]) -> dict[str, str | None]:
    return {name: machine.line("/proc/sys/" + name.replace(".", "/")) for name in names}


def _packages(machine: Machine, names: list[str]) -> dict[str, str | None]:
    """Version of each installed package by name, None of one that is not; of a pattern those that match it."""
    found: dict[str, str | None] = {name: None for name in names if not set(name) & set("*?[")}
    if names:
        # exit code 1 where one is unknown; the others are printed all the same
        form = "${Package}\\t${db:Status-Status}\\t${Version}\\n"
        for line in machine.run(["dpkg-query", "-W", "-f", form, *names])[1].splitlines():
            fields = line.split("\t")
            if len(fields) == 3 and fields[1] == "installed":
                found[fields[0]] = fields[2]
    return found


def _held(machine: Machine) -> list[str]:
    exit_code, output = machine.run(["apt-mark", "showhold"])
    return [] if exit_code else output.split()


def _default_target(machine: Machine) -> str | None:
    """What ``systemctl get-default`` prints: where the first of these links leads."""
    for path in _DEFAULT_TARGETS:
        with contextlib.suppress(OSError):
            return os.path.basename(os.readlink(machine.at(path)))
    return None


def _ntp(machine: Machine) -> bool | None:
    """Whether NTP is on."""
    exit_code, output = machine.run(["timedatectl", "show", "-p", "NTP"])
    found = system.assignments("" if exit_code else output)
    return {"yes": True, "no": False}.get(found.get("NTP", ""))


def _docker_program(machine: Machine) -> str | None:
    """Version of Docker where this user may not ask the engine."""
    try:
        found = re.match(r"Docker version ([^\s,]{1,100})", machine.run(["docker", "--version"])[1])
    except Unreadable:
        return None
    return found.group(1) if found else None


def _runtimes(machine: Machine) -> list[str]:
    try:
        found = machine.document(_DAEMON).get("runtimes")
    except Unreadable:
        return []
    return sorted(found) if isinstance(found, dict) else []
