"""Files of an enabled cluster on this node, and the agent's steps that change them.

Below ``clusters/NAME``::

    start.json              the steps that start this node's rank of the last recorded release
    enabled/guard.py        the program that starts it after a reboot, and restarts a dead group (``guard``)
    enabled/config.json     cluster, node, state_dir, runtime, port, limits, and the random token that all guards of
                            the cluster share; whether its model is loaded ``on_demand``, and the ``door_token``
                            that the door then uses
    enabled/stopped         written by down and before a start: nothing is started until the next release is recorded
    enabled/waits.json      why the guard is waiting
    enabled/journal.jsonl   every restart and its result
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
    """Update the files after a release was recorded: ``step`` has its number, and the rank's steps in ``start``.

    An empty ``start`` means that the rank keeps running as before; null, that it did not start and must not be
    restarted. Removes the marks of ``down`` and of a guard that gave up.
    """
    if "start" not in step:  # recorded again, as a rollback target
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
    # ``release`` is the release it was started with; later releases may have been recorded since.
    document = {"release": number, **start, "number": number, "epoch": request["epoch"]}
    common.write_atomically(_place(request, START_FILE), json.dumps(document, sort_keys=True).encode())


def _place(request: dict[str, Any], name: str) -> str:
    return os.path.join(common.cluster_dir(request["state_dir"], request["cluster"]), name)


def _clear(directory: str) -> None:
    for name in (STOPPED_FILE, WAITS_FILE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, name))


def stop(request: dict[str, Any], step: dict[str, Any]) -> None:
    """Make the guard of an enabled cluster start nothing until the next release is recorded."""
    # empty, so that it works on a full disk
    common.write_atomically(os.path.join(_place(request, ENABLED_DIR), STOPPED_FILE), b"")


def enable(request: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Install the guard: its ``program``, ``config`` and systemd unit. ``number`` is the recorded release.

    A model on demand starts as not wanted. Without a ``number`` it is the ``door``, which has no release. Answers as
    ``unit.install``.
    """
    start, number = common.read_json(_place(request, START_FILE)), step.get("number")
    if start.get("number") != number:
        hint = "run sparkcluster down, then up"
        raise Failed("this node has no start.json for release %s: %s" % (number, hint))
    directory = _place(request, ENABLED_DIR)
    unit.end(directory)
    if start:
        _write_start(request, start, step["number"])
    for name, text in ((GUARD_FILE, step["program"]), (CONFIG_FILE, json.dumps(step["config"]))):
        common.write_atomically(os.path.join(directory, name), text.encode())
    _clear(directory)
    return unit.install(directory)


def disable(request: dict[str, Any], step: dict[str, Any]) -> None:
    """Remove the guard, its unit and all its files."""
    directory = _place(request, ENABLED_DIR)
    unit.end(directory)
    unit.remove(directory)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)
