"""What this node has of a cluster that is enabled, and the agent's steps that change it.

Below ``clusters/NAME``::

    start.json              what starts this node's rank of the release that was recorded last
    enabled/guard.py        the program that starts it after a reboot, and restarts a dead group (``guard``)
    enabled/config.json     cluster, node, state_dir, runtime, port and limits
    enabled/token           random, the same on all nodes: by it guards know each other
    enabled/stopped         written by down and before a start: nothing starts until the next release is recorded
    enabled/starts.json     when this node's guard restarted its group, in seconds since 1970
    enabled/gave_up.json    why it does not restart its group any more
    enabled/waits.json      what it waits for
    enabled/journal.jsonl   every restart and how it ended
    enabled/guard.lock      held while the guard runs
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from typing import Any

from sparkcluster.node import common, unit
from sparkcluster.node.programs import Failed
from sparkcluster.node.shared import CONFIG_FILE, ENABLED_DIR, GUARD_FILE, START_FILE, STOPPED_FILE, TOKEN_FILE

STARTS_FILE, GAVE_UP_FILE, WAITS_FILE = "starts.json", "gave_up.json", "waits.json"
JOURNAL_FILE, LOCK_FILE = "journal.jsonl", "guard.lock"
START = {
    "number": int, "release": int, "epoch": int, "group": str, "head": bool, "address": str, "peers": {"*": str},
    "ranks": [str], "steps": [{"do": str}], "ask": ({"endpoint": str, "model": str, "counters": {"*": [str]}},),
    "ready_timeout_s": float,
}  # fmt: skip
"""Model of start.json, as ``release.enabled`` makes it and ``recorded`` completes it."""


def directory_of(state_dir: str, cluster: str) -> str:
    """The directory of ``cluster`` where it is enabled on this node."""
    return os.path.join(common.cluster_dir(state_dir, cluster), ENABLED_DIR)


def start_file(state_dir: str, cluster: str) -> str:
    """The document of what starts this node's rank."""
    return os.path.join(common.cluster_dir(state_dir, cluster), START_FILE)


def recorded(request: dict[str, Any], step: dict[str, Any]) -> None:
    """Take in that a release was recorded: ``step`` has its number, and in ``start`` what starts this node's rank.

    With an empty ``start`` the rank goes on as before; null says that it did not come up, and is not started again.
    What ``down`` wrote, and what the guard gave up, is over.
    """
    place = (request["state_dir"], request["cluster"])
    if "start" not in step:  # it is recorded again, for going back
        return
    if step["start"] is None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(start_file(*place))
    else:
        _write_start(request, step["start"] or common.read_json(start_file(*place)), int(step["number"]))
    clear(directory_of(*place))


def _write_start(request: dict[str, Any], start: Any, number: int) -> None:
    if start:
        # ``release`` is the one that it was started with; others were recorded beside it since.
        document = dict({"release": number}, **dict(start, number=number, epoch=request["epoch"]))
        path = start_file(request["state_dir"], request["cluster"])
        common.write_atomically(path, json.dumps(document, sort_keys=True).encode())


def clear(directory: str) -> None:
    """Forget what keeps the guard from starting anything."""
    for name in (STOPPED_FILE, GAVE_UP_FILE, STARTS_FILE, WAITS_FILE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, name))


def stop(request: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Let the guard start nothing until the next release is recorded, where the cluster is enabled."""
    directory = directory_of(request["state_dir"], request["cluster"])
    if os.path.isdir(directory):
        common.write_atomically(os.path.join(directory, STOPPED_FILE), b"")  # of no bytes: on a full disk, too
    return {}


def enable(request: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Install the guard: its ``program``, ``config``, ``token`` and systemd unit. ``number`` is the release recorded.

    Answers as ``unit.install`` does.
    """
    place = (request["state_dir"], request["cluster"])
    start = common.read_model(start_file(*place), START)
    if start is None or start["number"] != step["number"]:
        hint = "sparkcluster down, then up, records it"
        raise Failed("this node has not recorded what starts its rank of release %d: %s" % (step["number"], hint))
    directory = directory_of(*place)
    _write_start(request, start, step["number"])
    unit.end(directory, step["unit"])
    os.makedirs(directory, mode=0o700, exist_ok=True)
    os.chmod(directory, 0o700)
    contents = {GUARD_FILE: step["program"], CONFIG_FILE: json.dumps(step["config"]), TOKEN_FILE: step["token"]}
    for name, text in contents.items():
        common.write_atomically(os.path.join(directory, name), text.encode())
    clear(directory)
    return unit.install(directory, step["unit"])


def disable(request: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Remove the guard, its unit and all of its files."""
    directory = directory_of(request["state_dir"], request["cluster"])
    unit.end(directory, step["unit"])
    unit.remove(directory, step["unit"])
    if os.path.isdir(directory):
        shutil.rmtree(directory)
    return {}


def journal(directory: str, **entry: Any) -> None:
    """Append an act of the guard."""
    document = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **entry}
    with open(os.path.join(directory, JOURNAL_FILE), "ab") as file:
        file.write(json.dumps(document).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
