"""The ranks of sparkcluster on this node, as containers or as processes, and the logs of containers.

A rank is ``created``, ``running``, ``restarting``, ``paused``, ``removing``, ``exited``, ``dead`` or ``gone``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from sparkcluster.node import common
from sparkcluster.node.machine import Machine, Unreadable, quoted
from sparkcluster.node.shared import (
    LABEL_CLUSTER,
    LABEL_RANK_DIR,
    LABEL_STATE_DIR,
    RANK_FILE,
    SECRETS_FILE,
    VICTIM,
    VICTIM_LINE,
)

OVER = ("exited", "dead", "gone")
LINE_BYTES = 4096
# Parts of image names and commands of engines that users run on Sparks, the first match counts; and their names here.
_ENGINE = re.compile("vllm|sglang|ollama|llama|trtllm|tensorrt", re.IGNORECASE)
_CALLED = (("llama", "llama.cpp"), ("trtllm", "tensorrt-llm"), ("tensorrt", "tensorrt-llm"))
_NOT_ENDED = ("created", "running", "paused")  # for these Docker reports exit code 0
_PYTHON = re.compile(r"^(?:.*/)?python[\d.]*$")


def containers(machine: Machine, label: str) -> list[dict[str, Any]]:
    """All containers with ``label`` (``NAME`` or ``NAME=VALUE``), by name.

    Raises:
        Unreadable: Docker does not answer.
    """
    filters = quoted(json.dumps({"label": [label]}))
    listed = machine.docker_document("/containers/json?all=1&filters=" + filters, list) or []
    found = [_listed(machine, each) for each in listed]
    # drop containers that were removed since they were listed
    return sorted((rank for rank in found if rank["state"] != "gone"), key=lambda rank: str(rank["name"]))


def _listed(machine: Machine, each: dict[str, Any]) -> dict[str, Any]:
    """A container in Docker's list; leftovers of an interrupted removal cannot be inspected (moby#51724)."""
    try:
        return container(machine, each["Id"])
    except Unreadable:
        record = {"name": each["Names"][0][1:], "labels": each["Labels"], "image_id": each["ImageID"]}
        return _rank(record, each["State"], each["Labels"].get(LABEL_RANK_DIR, ""))


def of_cluster(machine: Machine, runtime: str, state_dir: str, cluster: str) -> list[dict[str, Any]]:
    """Every rank of ``cluster`` with this state directory.

    Raises:
        Unreadable: Docker does not answer.
    """
    if runtime == "process":
        return processes(machine, state_dir, cluster)
    found = containers(machine, "%s=%s" % (LABEL_CLUSTER, cluster))
    return [rank for rank in found if rank["labels"].get(LABEL_STATE_DIR) == state_dir]


def others(machine: Machine) -> list[dict[str, Any]]:
    """Running containers that sparkcluster did not start, from Docker's list.

    Raises:
        Unreadable: Docker does not answer.
    """
    listed = machine.docker_document("/containers/json", list) or []
    return [
        {
            "name": (each.get("Names") or [""])[0].lstrip("/") or each["Id"],
            "engine": _engine("%s %s" % (each.get("Image"), each.get("Command"))),
            "host_network": (each.get("HostConfig") or {}).get("NetworkMode") == "host",
            "ports": sorted({port["PublicPort"] for port in each.get("Ports") or [] if port.get("PublicPort")}),
        }
        for each in listed
        if LABEL_CLUSTER not in (each.get("Labels") or {})
    ]


def _engine(words: str) -> str:
    found = _ENGINE.search(words)
    name = found.group().lower() if found else ""
    return dict(_CALLED).get(name, name)


def container(machine: Machine, name: str) -> dict[str, Any]:
    """The container with this name or ID.

    Raises:
        Unreadable: Docker does not answer.
    """
    document = machine.docker_document("/containers/%s/json" % quoted(name))
    if document is None:
        return _rank({"name": name}, "gone", "")
    state, labels = document["State"], document["Config"]["Labels"] or {}
    record = {"name": document["Name"].lstrip("/"), "labels": labels, "image_id": document["Image"]}
    error, log = state["Error"][:300], b""
    if state["ExitCode"] == VICTIM and not error:
        with contextlib.suppress(Unreadable):
            log = b"".join(log_pieces(machine, name, "tail=40", machine.docker_limit_s))
        error = _why_killed(log.decode(errors="replace"))
    return _rank(
        dict(record, started_at=_time(state["StartedAt"])),
        state["Status"],
        labels.get(LABEL_RANK_DIR, ""),
        exit_code=None if state["Status"] in _NOT_ENDED else state["ExitCode"],
        pid=state["Pid"] or None,
        oom_killed=state["OOMKilled"],
        restarts=document["RestartCount"],
        finished_at=_time(state["FinishedAt"]),
        error=error,
        python=next((word for word in (document["Path"], *document["Args"]) if _PYTHON.match(word)), None),
    )


def processes(machine: Machine, state_dir: str, cluster: str = "") -> list[dict[str, Any]]:
    """Every rank of runtime ``process`` below ``state_dir``; only of ``cluster`` if given."""
    found = []
    for name in [cluster] if cluster else machine.names(state_dir + "/clusters"):
        folder = "%s/clusters/%s/ranks" % (state_dir, name)
        paths = ["%s/%s" % (folder, rank) for rank in machine.names(folder)]
        found += [process(machine, path) for path in paths if machine.exists("%s/%s" % (path, RANK_FILE))]
    return found


def process(machine: Machine, rank_dir: str) -> dict[str, Any]:
    """The rank of runtime ``process`` in this directory.

    The start time is compared, since a later process may have the same ID.
    """
    record = common.read_json(machine.at("%s/%s" % (rank_dir, RANK_FILE)))
    if record and common.ticks_of(machine.text("/proc/%d/stat" % record["pid"], "")) == record["start_ticks"]:
        return _rank(record, "running", rank_dir, pid=record["pid"])
    code = machine.line(rank_dir + "/exit")
    state = "exited" if record or code else "gone"
    error = _why_killed(machine.text(rank_dir + "/log", "")) if code == str(VICTIM) else ""
    record, number = record or {"name": os.path.basename(rank_dir)}, int(code) if code else None
    return _rank(record, state, rank_dir, exit_code=number, error=error)


def _why_killed(log: str) -> str:
    """The message of a victim's launcher; a default if it is missing, as some of Docker's log drivers keep nothing."""
    return "".join(re.findall(VICTIM_LINE + "(.{1,300})", log)[-1:]) or "killed to protect the machine"


def log_pieces(machine: Machine, name: str, query: str, limit_s: float | None) -> Iterator[bytes]:
    """A container's log from Docker, in pieces: a line, or a part of a long one.

    ``limit_s`` is the longest wait for the next piece.

    Raises:
        Unreadable: Docker has no log of it, or takes longer.
    """
    path = "/containers/%s/logs?stdout=1&stderr=1&%s" % (quoted(name), query)
    with machine.docker_stream(path, limit_s) as (status, stream):
        if status != 200:
            raise Unreadable("the Docker engine answers %d to the log of %s" % (status, name))
        while True:
            # each piece has a header: 1 byte of stream, 3 of padding, 4 of length
            header = stream.read(8)
            if len(header) < 8:
                return
            yield stream.read(struct.unpack(">xxxxL", header)[0])


def secrets(rank_dir: str) -> list[str]:
    """Values of a rank's secrets, longest first.

    Values of fewer than 6 characters are skipped: they may be ordinary words.
    """
    try:
        values = common.read_env_file(os.path.join(rank_dir or "/", SECRETS_FILE)).values()
    except OSError:
        return []
    return sorted((value for value in values if len(value) >= 6), key=len, reverse=True)


def text_lines(data: bytes, hidden: Iterable[str] = ()) -> list[str]:
    """The lines of a part of a log that are not empty, without what is ``hidden``.

    A progress bar's carriage return ends a line too.
    """
    for secret in hidden:
        data = data.replace(secret.encode(), b"(removed)")
    return [line[:LINE_BYTES].decode(errors="replace") for line in data.splitlines() if line.strip()]


def _rank(record: dict[str, Any], state: str, rank_dir: str, **more: Any) -> dict[str, Any]:
    """A rank from its record: of a process, or of a container with the same keys."""
    own = {key: record.get(key) for key in ("name", "image_id", "started_at")}
    labels = record.get("labels") or {}
    unknown = {"exit_code": None, "pid": None, "oom_killed": False, "error": ""}
    return {**own, "labels": labels, "state": state, "rank_dir": rank_dir, **unknown, **more}


def _time(text: str) -> str | None:
    """A time, None if unset: Docker then reports the year 1."""
    return None if text.startswith("0001-") else text
