"""Changes a node, step by step, under the lease.

A rank is only started if it does not exist: the sender of the steps, or the guard, has stopped the previous one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

from sparkcluster.node import bind, common, docker, enabled, memory, models, releases, repair
from sparkcluster.node.programs import Failed, run
from sparkcluster.node.shared import RANK_FILE
from sparkcluster.node.unpack import unpack

Request = dict[str, Any]
Step = dict[str, Any]

# Time limits for the rest of a session after its launcher ended, and then for SIGKILL.
REST_S, KILL_S = 10, 10


def main(request: Request, lines: BinaryIO) -> dict[str, Any]:
    """Run ``request["steps"]`` in order; ``request`` also has state_dir, cluster, epoch, order and wait_s.

    Answers ``{"results": [...]}``, ``{"refused": why}`` if the lease does not allow it, or
    ``{"failed": {"step": name, "message": why}}`` for the first step that fails.
    """
    results = []
    name = "change"
    try:
        with common.changing(request):
            for step in request["steps"]:
                name = step["do"]
                results.append(STEPS[name](request, step) or {})
    except common.Refused as refusal:
        return {"refused": str(refusal)}
    except (Failed, OSError) as error:
        return {"failed": {"step": name, "message": str(error)}}
    return {"results": results}


def put(request: Request, step: Step) -> None:
    """Write a file; parents are created, readable by this user only."""
    common.write_atomically(common.expand(step["path"]), step["content"].encode(), step.get("mode", 0o600))


def make_directory(request: Request, step: Step) -> None:
    """Create a directory and its parents; ``shared``: writable by any user of a container, below a private parent."""
    path = common.expand(step["path"])
    os.makedirs(path, exist_ok=True)
    for each, mode in ((os.path.dirname(path), 0o700), (path, 0o1777)) if step.get("shared") else ():
        if os.stat(each).st_uid == os.geteuid():
            os.chmod(each, mode)


def build_library(request: Request, step: Step) -> None:
    """Compile the library that confines sockets. Without a compiler create an empty file: it is mounted in any case."""
    path = common.expand(step["path"])
    if bind.build(path, os.environ) is not None:
        common.write_atomically(path, b"", 0o644)


def delete(request: Request, step: Step) -> None:
    """Remove a file or tree below the state directory, if it exists; root's files by a container of ``image``."""
    path = common.inside(step["path"], request["state_dir"])
    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
    elif os.path.lexists(path):
        repair.remove_tree(path, step.get("image"))


def start_container(request: Request, step: Step) -> None:
    """``docker run`` a rank."""
    for source, root in step["roots"].items():
        stay_inside(source, root)
    memory.record(common.expand(step["rank_dir"]))
    run(step["argv"])


def stay_inside(source: str, root: str) -> None:
    """Refuse a path of the playbook if a link leads out of ``root``: a container may have created the link."""
    place, directory = os.path.realpath(source), os.path.realpath(root)
    if os.path.commonpath([place, directory]) != directory:
        hint = "on that node, %s shows the link; to mount its target, use the path of the target"
        look = shlex.join(["namei", "-l", source])
        raise Failed(("%s leads to %s, outside of %s; " + hint) % (source, place, root, look))
    # Docker follows links as root, also in directories that this user cannot read; for those this raises.
    mode = os.lstat(place).st_mode
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise Failed("%s is neither a directory nor a file and cannot be mounted" % source)


def stop(request: Request, step: Step) -> None:
    """Stop and remove the ranks that exist: ``containers`` and ``processes``, whose logs stay until the next start."""
    containers, grace_s = step["containers"], step["grace_s"]
    if containers:
        with contextlib.suppress(Failed):
            run(docker.stop(containers, grace_s), grace_s + 30)
    for name in containers:
        try:
            run(docker.remove(name))
        except Failed as error:
            if not docker.is_missing(str(error)):
                raise Failed("%s: %s" % (name, error)) from None
    for directory in step["processes"]:
        end_process(common.expand(directory), grace_s)


def start_process(request: Request, step: Step) -> None:
    """Start a rank as a process in its own session."""
    directory = common.expand(step["rank_dir"])
    os.makedirs(directory, mode=0o700, exist_ok=True)
    memory.record(directory)
    exit_file = os.path.join(directory, "exit")
    if os.path.exists(exit_file):
        os.unlink(exit_file)
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "USER", "TMPDIR") if name in os.environ}
    environment.update(step["env"])
    if step.get("env_file"):
        environment.update(common.read_env_file(common.expand(step["env_file"])))
    # The shell remains as parent to record the exit code.
    argv = ["/bin/sh", "-c", '"$@"; echo $? > "$0"', exit_file, *step["argv"]]
    # The log is truncated: an old "ready" or error must not be taken for this start's.
    with open(os.path.join(directory, "log"), "wb") as log:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
    document = {
        "name": step["name"],
        "pid": process.pid,
        "start_ticks": common.start_ticks(process.pid),
        "labels": step["labels"],
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    common.write_atomically(os.path.join(directory, RANK_FILE), json.dumps(document).encode())


def session_members(leader: int) -> dict[int, int]:
    """Processes of the session of ``leader``, with their parents."""
    return {pid: parent for pid, (parent, session) in common.processes().items() if session == leader}


def end_process(directory: str, grace_s: float) -> None:
    """Terminate a rank's launcher; after ``grace_s`` the rest of its session; then kill it. Remove its record.

    The launcher ends the engine before Ray: if both are terminated together, Ray kills the engine after a second.
    """
    record = os.path.join(directory, RANK_FILE)
    rank = common.read_json(record)
    if rank and common.start_ticks(rank["pid"]) in (None, rank["start_ticks"]):
        shell = rank["pid"]
        _end(
            lambda: [pid for pid, parent in session_members(shell).items() if parent == shell], signal.SIGTERM, grace_s
        )
        _end(lambda: session_members(shell), signal.SIGTERM, min(grace_s, REST_S))
        _end(lambda: session_members(shell), signal.SIGKILL, KILL_S)
        remaining = list(session_members(shell))
        if remaining:
            raise Failed("processes %s cannot be killed" % remaining)
    if os.path.exists(record):
        os.unlink(record)


def _end(processes: Callable[[], Iterable[int]], number: int, wait_s: float) -> None:
    """Send the signal ``number`` to ``processes``, and wait until they have ended."""
    limit = time.monotonic() + wait_s
    for pid in processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    while list(processes()) and time.monotonic() < limit:
        time.sleep(0.05)


STEPS: dict[str, Callable[[Request, Step], dict[str, Any] | None]] = {
    "put": put,
    "mkdir": make_directory,
    "build-library": build_library,
    "delete": delete,
    "own": repair.own,
    "prune": models.remove,
    "start-container": start_container,
    "stop": stop,
    "start-process": start_process,
    "evict": memory.evict,
    "record": releases.record,
    "restore-secrets": releases.restore_secrets,
    "unpack": unpack,
    "enable": enabled.enable,
    "disable": enabled.disable,
    "stay-down": enabled.stop,
}
