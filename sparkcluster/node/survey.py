"""Reads a machine before setup: hardware, cabling, and everything that ``setup`` may change; changes nothing.

Files that only root can read are read with sudo, if it needs no password.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
from collections.abc import Callable
from typing import Any

from sparkcluster.node import common, container_facts, neighbours, network, ranks, system
from sparkcluster.node.machine import LIMIT_S, Machine, Readings, Unreadable, unread
from sparkcluster.node.shared import LABEL_CLUSTER

_LOOK_S = 3 * LIMIT_S  # for sudo, if it does not answer, and the fallback without it
_STATE_DIR = "~/.local/state/sparkcluster"
_JOURNALS = (("/var/lib/sparkcluster/setup/journal", True), (_STATE_DIR + "/setup/journal", False))
_FIELDS = ("number", "at", "operator", "step", "kind", "target", "before", "after")
# Prints running containers of a cluster; then for each path, or its matches: mode and owner if it exists, hash and
# content if it is readable.
_LOOK = """
exec 2>/dev/null
IFS=
timeout 2 docker ps --filter "label=$1" --format 'rank {{.Names}}'
shift
for pattern do
  for path in $pattern; do
    about=$(stat -Lc '%a %U' "$path") sum=$(sha256sum <"$path") content=$(base64 -w 0 <"$path")
    printf 'file %s\t%s\t%s\t%s\n' "$path" "$about" "$sum" "$content"
  done
done
exit 0
"""


def main(request: dict[str, Any], _lines: Any = None, machine: Machine | None = None) -> dict[str, Any]:
    """Return the document that ``facts.survey.Survey`` parses.

    Args:
        request: hf_home; files (paths, or patterns of sh) and packages to report; look_for (IPv4 addresses of other
            nodes' rails).
        machine: the node.

    Raises:
        Unreadable: the files could not be read.
    """
    machine = machine or Machine()
    facts: dict[str, Any] = machine.identity()
    uid, hf_home = facts["uid"], common.expand(request["hf_home"])
    files = list(map(common.expand, request.get("files", ())))

    readings = Readings(LIMIT_S)
    value = readings.value
    readers: dict[str, Callable[[], Any]] = {
        "os": lambda: system.os_release(machine.text("/etc/os-release")),
        "dgx": lambda: system.dgx_release(machine.text("/etc/dgx-release")),
        "interfaces": lambda: network.interfaces(machine),
        "neighbours": lambda: neighbours.neighbours(machine, value("interfaces"), request.get("look_for") or ()),
        "unaddressed": lambda: neighbours.unaddressed(machine, value("interfaces")),
        "engine": lambda: container_facts.docker(machine),
        "processes": lambda: ranks.processes(machine, common.expand(_STATE_DIR)),
        "host_keys": lambda: _host_keys(machine),
        "machine": lambda: system.machine_id(machine),
        "foreign": lambda: foreign(machine, hf_home) if uid else 0,
        "packages": lambda: _packages(machine, request.get("packages", [])),
        "default_target": lambda: os.path.basename(os.path.realpath(machine.at("/etc/systemd/system/default.target"))),
        "ntp": lambda: machine.run(["timedatectl", "show", "-p", "NTP"])[1] == "NTP=yes\n",
        "journal": lambda: [each for path, root in _JOURNALS for each in journal(machine, path, root=root)],
    }
    looking = Readings(_LOOK_S)
    looking.start("look", lambda: _look(machine, uid, files))
    facts.update(readings.all(readers))
    look, engine, processes = looking.value("look"), facts.pop("engine"), facts.pop("processes")
    if unread(look):
        raise Unreadable(look["unread"])
    facts.update(look)
    facts["runtimes"] = None if unread(engine) else engine["runtimes"]
    facts["docker"] = not unread(engine) or shutil.which("docker") is not None
    facts["ranks"] += [] if unread(processes) else [each["name"] for each in processes if each["state"] == "running"]
    facts.update(reached_at=machine.reached_at(), hf_home=hf_home)
    return facts


def _look(machine: Machine, uid: int, files: list[str]) -> dict[str, Any]:
    """How this user becomes root, the state of each file, and running containers of a cluster."""
    argv = ["sh", "-c", _LOOK, "sh", LABEL_CLUSTER, *files]
    sudo, exit_code, output = "root", 1, ""
    if uid:
        try:
            exit_code, output = machine.run(["sudo", "-n", "--", *argv])
            sudo = "password" if exit_code else "free"
        except Unreadable as error:
            sudo = "absent" if "not installed" in str(error) else "password"
    if exit_code:
        output = machine.run(argv)[1]
    lines = [line.partition(" ") for line in output.split("\n")]
    found = [rest.split("\t") for kind, _, rest in lines if kind == "file"]
    return {
        "sudo": sudo,
        "files": {path: _state(about, digest, content) for path, about, digest, content in found},
        "ranks": [rest for kind, _, rest in lines if kind == "rank"],
    }


def _state(about: str, digest: str, content: str) -> dict[str, Any]:
    if not about:
        return {}
    if not digest:
        return {"unread": "permission denied"}
    mode, _, owner = about.partition(" ")
    text = None
    with contextlib.suppress(UnicodeDecodeError):
        text = base64.b64decode(content).decode()
    return {"sha256": digest.partition(" ")[0], "mode": int(mode, 8), "owner": owner, "text": text}


def foreign(machine: Machine, path: str) -> int:
    """Number of files and directories at and below ``path`` that root owns.

    Other file systems are skipped, since ``setup`` does not change them.
    """
    mounted = ["-type", "d", "!", "-path", path, "-exec", "mountpoint", "-q", "{}", ";"]
    return machine.run(["find", path, "-xdev", "-uid", "0", "!", "(", *mounted, ")", "-print0"])[1].count("\0")


def journal(machine: Machine, path: str, *, root: bool) -> list[dict[str, Any]]:
    """The entries of a journal of ``setup``, which always replaces the complete file."""
    lines = [line.split("\t") for line in machine.text(common.expand(path), "").splitlines()]
    return [dict(zip(_FIELDS, fields, strict=True), root=root) for fields in lines]


def _host_keys(machine: Machine) -> list[str]:
    """Public host keys as ``type base64``."""
    names = [name for name in machine.names("/etc/ssh") if name.startswith("ssh_host_") and name.endswith("_key.pub")]
    return [" ".join(machine.text("/etc/ssh/" + name).split()[:2]) for name in names]


def _packages(machine: Machine, names: list[str]) -> dict[str, str]:
    """Installed packages that match ``names``, each with its dpkg selection."""
    # exit code 1 if one is unknown; the others are still printed
    form = "${Package} ${db:Status-Status} ${db:Status-Want}\n"
    output = machine.run(["dpkg-query", "-W", "-f", form, *names])[1] if names else ""
    rows = [line.split(" ") for line in output.splitlines()]
    return {row[0]: row[2] for row in rows if row[1:2] == ["installed"]}
