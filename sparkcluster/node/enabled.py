"""What this node has of a cluster that is enabled, and the agent's steps that change it.

Below ``clusters/NAME``::

    start.json              what starts this node's rank of the release that was recorded last
    enabled/guard.py        the program that starts it after a reboot, and restarts a dead group (``guard``)
    enabled/config.json     cluster, node, state_dir, runtime, port, limits, and the token by which guards know each
                            other: random, the same on all nodes; whether its model is loaded ``on_demand``, and
                            then the ``door_token`` by which the door has it loaded
    enabled/stopped         written by down and before a start: nothing starts until the next release is recorded
    enabled/waits.json      what the guard waits for
    enabled/journal.jsonl   every restart and how it ended
    enabled/guard.lock      held while the guard runs
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from typing import Any

from sparkcluster.node import common, unit
from sparkcluster.node.programs import Failed
from sparkcluster.node.shared import CONFIG_FILE, ENABLED_DIR, GUARD_FILE, START_FILE, STOPPED_FILE, WAITS_FILE


def recorded(request: dict[str, Any], step: dict[str, Any]) -> None:
    """Take in that a release was recorded: ``step`` has its number, and in ``start`` what starts this node's rank.

    With an empty ``start`` the rank goes on as before; null says that it did not come up, and is not started again.
    What ``down`` wrote, and what the guard gave up, is over.
    """
    if "start" not in step:  # it is recorded again, for going back
        return
    path = _place(request, START_FILE)
    start = common.read_json(path) if step["start"] == {} else step["start"]
    if start:
        _write_start(request, start, int(step["number"]))
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    _clear(_place(request, ENABLED_DIR))


def _write_start(request: dict[str, Any], start: dict[str, Any], number: int) -> None:
    # ``release`` is the one that it was started with; others were recorded beside it since.
    document = {"release": number, **start, "number": number, "epoch": request["epoch"]}
    common.write_atomically(_place(request, START_FILE), json.dumps(document, sort_keys=True).encode())


def _place(request: dict[str, Any], name: str) -> str:
    return os.path.join(common.cluster_dir(request["state_dir"], request["cluster"]), name)


def _clear(directory: str) -> None:
    for name in (STOPPED_FILE, WAITS_FILE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, name))


def stop(request: dict[str, Any], step: dict[str, Any]) -> None:
    """Let the guard start nothing until the next release is recorded, where the cluster is enabled."""
    # of no bytes: on a full disk, too
    common.write_atomically(os.path.join(_place(request, ENABLED_DIR), STOPPED_FILE), b"")


def enable(request: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Install the guard: its ``program``, ``config`` and systemd unit. ``number`` is the release recorded.

    A model on demand is not wanted then. Without a ``number`` it is the ``door``, which has no release. Answers as
    ``unit.install`` does.
    """
    start, number = common.read_json(_place(request, START_FILE)), step.get("number")
    if start.get("number") != number:
        hint = "sparkcluster down, then up, records it"
        raise Failed("this node has not recorded what starts its rank of release %s: %s" % (number, hint))
    directory = _place(request, ENABLED_DIR)
    unit.end(directory)
    if start:
        _write_start(request, start, step["number"])
    for name, text in ((GUARD_FILE, step["program"]), (CONFIG_FILE, json.dumps(step["config"]))):
        common.write_atomically(os.path.join(directory, name), text.encode())
    _clear(directory)
    return unit.install(directory)


def disable(request: dict[str, Any], step: dict[str, Any]) -> None:
    """Remove the guard, its unit and all of its files."""
    directory = _place(request, ENABLED_DIR)
    unit.end(directory)
    unit.remove(directory)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)
