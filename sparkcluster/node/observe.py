"""State of a cluster's ranks on this node, in one round trip; nothing is changed.

Answers one document that ``sparkcluster.facts.running`` reads. What moves is read twice, some seconds apart.
Readers run side by side, and a reader that hangs costs only its own reading, which is then ``{"unread": "why"}``.
Python 3.8, standard library.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import urllib.parse
from typing import Any, Callable

from sparkcluster.node import common, docker, vitals, watch
from sparkcluster.node.machine import Machine, Unreadable, because
from sparkcluster.node.shared import LABEL_CLUSTER, LABEL_RANK_DIR, LABEL_STATE_DIR, LAUNCHER_FILE, RANK_FILE

LOG_BYTES = 4 << 20


class Jobs:
    """Runs readers in parallel and keeps what each returned within ``limit_s``."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._until = time.monotonic() + limit_s
        self._values: dict[str, Any] = {}
        self._threads: dict[str, threading.Thread] = {}

    def start(self, key: str, reader: Callable[[], Any]) -> None:
        """Start a reader in a thread that does not prevent the exit."""

        def work() -> None:
            try:
                self._values[key] = reader()
            except Exception as error:
                self._values[key] = {"unread": because(error)}

        self._threads[key] = threading.Thread(target=work, name=key, daemon=True)
        self._threads[key].start()

    def value(self, key: str) -> Any:
        """What the reader of ``key`` returned, or why it returned nothing; None where there is no such reader."""
        if key not in self._threads:
            return None
        self._threads[key].join(max(0.0, self._until - time.monotonic()))
        return self._values.get(key, {"unread": "no answer within %g s" % self._limit_s})


def main(request: dict[str, Any], _lines: Any = None) -> None:
    """Write the document, then exit at once, whether or not a reader hangs."""
    print(json.dumps(observe(request, Machine())), flush=True)
    os._exit(0)


def observe(request: dict[str, Any], machine: Machine, sleep: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """Read the state of the ranks of ``request["cluster"]`` on this node.

    Args:
        request: cluster, state_dir (absolute: whose ranks), runtime, interval_s between the two readings, limit_s for
            everything, how many log lines from the start (head_lines) and the end (tail_lines) of each rank,
            secrets_file, the name of the file with a rank's secrets, whose values no log carries away, and api_flags
            and counters of the engine.
        machine: the node.
        sleep: what waits between the readings.
    """
    began = time.monotonic()
    limit_s, interval_s = float(request["limit_s"]), float(request["interval_s"])
    jobs = Jobs(limit_s)

    def twice(reader: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for last in (False, True):
            at = time.monotonic() - began
            found.append(dict(reader(), at_s=round(at, 3)))
            if not last:
                sleep(interval_s)
        return found

    jobs.start("gpus", lambda: twice(lambda: vitals.gpu(machine)))
    jobs.start("traffic", lambda: twice(lambda: vitals.traffic(machine)))
    jobs.start("ranks", lambda: ranks(request, machine))
    listed = jobs.value("ranks")
    known = listed if isinstance(listed, list) else []
    head = next((rank for rank in known if rank["launcher"].get("role") == "head" and rank["state"] == "running"), None)
    for number, rank in enumerate(known):
        jobs.start("log %d" % number, lambda rank=rank: log(rank, request))  # type: ignore[misc]
        if rank["state"] == "running" and rank["runtime"] == "docker":
            jobs.start("gpu %d" % number, lambda rank=rank: vitals.gpu_inside(rank["name"]))  # type: ignore[misc]
    if head is not None:
        where = vitals.api(head["launcher"].get("engine") or [], request["api_flags"])
        jobs.start("counters", lambda: twice(lambda: vitals.counters(where, request["counters"])))
        jobs.start("health", lambda: vitals.get(where, "/health")[0])
        if head["launcher"].get("executor") == "ray":
            jobs.start("ray", lambda: vitals.ray_nodes(head, limit_s))
    answer: dict[str, Any] = {"ranks": listed}
    secret = hidden(machine, known, str(request.get("secrets_file") or ""))
    for number, rank in enumerate(known):
        rank["log"] = without(jobs.value("log %d" % number), secret)
        rank["gpu"] = jobs.value("gpu %d" % number)
    for key in ("gpus", "traffic", "counters", "health", "ray"):
        answer[key] = jobs.value(key)
    answer["observe_s"] = round(time.monotonic() - began, 3)
    return answer


def ranks(request: dict[str, Any], machine: Machine) -> list[dict[str, Any]]:
    """Every rank of the cluster on this node with the state of its container or process.

    Raises:
        Unreadable: the Docker engine cannot be asked.
    """
    if request.get("runtime") == "process":
        return [process(path) for path in process_dirs(request)]
    chosen = json.dumps({"label": ["%s=%s" % (LABEL_CLUSTER, request["cluster"])]})
    status, listed = machine.docker("/containers/json?all=1&filters=" + urllib.parse.quote(chosen))
    if status != 200 or not isinstance(listed, list):
        raise Unreadable("the Docker engine answers %d to the list of containers" % status)
    found = []
    for each in listed:
        labels = each.get("Labels") or {}
        if labels.get(LABEL_STATE_DIR) != request["state_dir"]:
            continue
        status, document = machine.docker("/containers/%s/json" % each["Id"])
        document = document if status == 200 and isinstance(document, dict) else {}
        state = document.get("State") or {}
        found.append(
            {
                "name": ((each.get("Names") or [""])[0]).lstrip("/") or each["Id"],
                "runtime": "docker",
                "state": str(state.get("Status") or each.get("State") or "unknown"),
                "exit_code": None if state.get("Running") else state.get("ExitCode"),
                "oom_killed": bool(state.get("OOMKilled")),
                "restarts": int(document.get("RestartCount") or 0),
                "started_at": state.get("StartedAt"),
                "finished_at": None if state.get("Running") else state.get("FinishedAt"),
                "error": str(state.get("Error") or "")[:300],
                "labels": labels,
                "launcher": launcher(labels.get(LABEL_RANK_DIR, "")),
                "python": next((w for w in [document.get("Path"), *(document.get("Args") or [])] if _python(w)), None),
                "gpu": None,
            }
        )
    return sorted(found, key=lambda rank: str(rank["name"]))


def _python(word: Any) -> bool:
    return isinstance(word, str) and re.match(r"^python[\d.]*$", os.path.basename(word)) is not None


def process_dirs(request: dict[str, Any]) -> list[str]:
    """Directories of the ranks with runtime ``process``."""
    base = os.path.join(common.cluster_dir(request["state_dir"], request["cluster"]), "ranks")
    try:
        names = sorted(os.listdir(base))
    except OSError:
        return []
    return [os.path.join(base, name) for name in names if os.path.exists(os.path.join(base, name, RANK_FILE))]


def process(rank_dir: str) -> dict[str, Any]:
    """A rank with runtime ``process``."""
    record = common.read_json(os.path.join(rank_dir, RANK_FILE))
    record = record if isinstance(record, dict) else {}
    state = watch.process_state(rank_dir)
    labels = record.get("labels")
    return {
        "name": str(record.get("name") or os.path.basename(rank_dir)),
        "runtime": "process",
        "state": state["state"],
        "exit_code": state.get("exit_code"),
        "oom_killed": False,
        "restarts": 0,
        "started_at": None if record.get("started_at") is None else str(record["started_at"]),
        "finished_at": None,
        "error": "",
        "labels": {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {},
        "launcher": launcher(rank_dir),
        "python": None,
        "gpu": None,
        "rank_dir": rank_dir,
    }


def launcher(rank_dir: str) -> dict[str, Any]:
    """The parts of the launcher document that matter: roles, addresses, and the engine's command."""
    document = common.read_json(os.path.join(common.expand(rank_dir), LAUNCHER_FILE)) if rank_dir else None
    if not isinstance(document, dict):
        return {}
    keys = ("group", "node", "rank", "role", "executor", "address", "members", "engine", "ray")
    return {key: document.get(key) for key in keys}


def hidden(machine: Machine, known: list[dict[str, Any]], secrets_file: str) -> list[str]:
    """What must not leave the node in a log: values of secrets, and serial numbers."""
    found: set[str] = set()
    for rank in known:
        folder = rank.get("rank_dir") or rank["labels"].get(LABEL_RANK_DIR)
        try:
            with open(os.path.join(common.expand(folder or "/"), secrets_file), errors="replace") as file:
                found.update(line.rstrip("\n").partition("=")[2] for line in file)
        except OSError:
            continue
    for name in ("product_serial", "board_serial", "chassis_serial", "product_uuid"):
        found.add(machine.line("/sys/class/dmi/id/" + name) or "")
    try:
        found.update(re.findall(r'SERIAL\w*="?([^"\n]+)', machine.text("/etc/dgx-release")))
    except Unreadable:
        pass
    # Shorter values may be ordinary words.
    return sorted((line.strip() for line in found if len(line.strip()) >= 6), key=len, reverse=True)


def without(value: Any, secret: list[str]) -> Any:
    """``value`` with every string of ``secret`` removed from its texts."""
    if isinstance(value, str):
        for text in secret:
            value = value.replace(text, "(removed)")
        return value
    if isinstance(value, dict):
        return {key: without(each, secret) for key, each in value.items()}
    return [without(each, secret) for each in value] if isinstance(value, list) else value


def log(rank: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """First and last lines of a rank's log: the start shows the configuration, the end why it exited."""
    first, last = int(request["head_lines"]), int(request["tail_lines"])
    if rank["runtime"] == "process":
        with open(os.path.join(rank["rank_dir"], "log"), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            lines = watch.split(file.read(LOG_BYTES) + b"\n")[0]
            if size > LOG_BYTES:
                file.seek(size - LOG_BYTES // 4)
                return {"first": lines[:first], "last": watch.split(file.read() + b"\n")[0][1:][-last:]}
        return {"first": lines[:first], "last": lines[first:][-last:]}
    lines, whole = container_log(rank["name"], "all", first)
    if whole:
        return {"first": lines, "last": []}
    return {"first": lines, "last": container_log(rank["name"], str(last), last)[0]}


def container_log(name: str, tail: str, most: int) -> tuple[list[str], bool]:
    """At most ``most`` lines of a container's log, and whether the log has no more."""
    query = "/containers/%s/logs?stdout=1&stderr=1&tail=%s" % (urllib.parse.quote(name), tail)
    connection, response = docker.get(query)
    lines: list[str] = []
    rest, size = b"", 0
    try:
        if response.status != 200:
            raise Unreadable("the Docker engine answers %d to the log of %s" % (response.status, name))
        for piece in watch.frames(response, False):
            size += len(piece)
            new, rest = watch.split(rest + piece)
            lines += new
            if len(lines) > most or size > LOG_BYTES:
                return lines[:most], False
    finally:
        connection.close()
    lines += watch.split(rest + b"\n")[0]
    return lines[:most], len(lines) <= most
