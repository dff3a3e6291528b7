"""State of a cluster's ranks on this node, in one round trip; nothing is changed.

Answers one document that ``sparkcluster.facts.running`` reads. What moves is read twice, some seconds apart.
Readers run side by side, and a reader that hangs costs only its own reading, which is then ``{"unread": "why"}``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from sparkcluster.node import common, gpu, ranks, system, vitals
from sparkcluster.node.machine import DOCKER_LIMIT_S, Machine, Readings, Unreadable
from sparkcluster.node.shared import LABEL_CLUSTER, LABEL_STATE_DIR, LAUNCHER_FILE

LOG_BYTES = 4 << 20


def main(request: dict[str, Any], _lines: Any = None) -> None:
    """Write the document, then exit at once, whether or not a reader hangs."""
    common.emit(observe(request, Machine(docker_limit_s=DOCKER_LIMIT_S)))
    os._exit(0)


def observe(request: dict[str, Any], machine: Machine, sleep: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """Read the state of the ranks of ``request["cluster"]`` on this node.

    Args:
        request: cluster, state_dir (absolute: whose ranks), runtime, interval_s between the two readings, limit_s for
            everything, how many log lines from the start (head_lines) and the end (tail_lines) of each rank,
            secrets_file, the name of the file with a rank's secrets, whose values are removed from logs, api_flags
            and counters of the engine, and brief: without logs, health, Ray, and what is asked within containers.
        machine: the node.
        sleep: what waits between the readings.
    """
    began, whole = time.monotonic(), not request.get("brief")
    limit_s, interval_s = float(request["limit_s"]), float(request["interval_s"])
    readings = Readings(limit_s)

    def twice(reader: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for last in (False, True):
            at = time.monotonic() - began
            found.append(dict(reader(), at_s=round(at, 3)))
            if not last:
                sleep(interval_s)
        return found

    readings.start("gpus", lambda: twice(lambda: gpu.query(machine, gpu.SAMPLED)[0]))
    readings.start("traffic", lambda: twice(lambda: vitals.traffic(machine)))
    readings.start("memory", lambda: system.meminfo(machine.text("/proc/meminfo")))
    readings.start("ranks", lambda: ranks_of(request, machine))
    listed = readings.value("ranks")
    ranks_here = listed if isinstance(listed, list) else []
    head = next(
        (rank for rank in ranks_here if rank["launcher"].get("role") == "head" and rank["state"] == "running"), None
    )
    for number, rank in enumerate(ranks_here if whole else ()):
        readings.start("log %d" % number, lambda rank=rank: log(machine, rank, request))  # type: ignore[misc]
        if rank["state"] == "running" and rank["runtime"] == "docker":
            readings.start("gpu %d" % number, lambda rank=rank: vitals.gpu_inside(rank["name"]))  # type: ignore[misc]
    if head is not None:
        where = vitals.api(head["launcher"].get("engine") or [], request["api_flags"])
        readings.start("counters", lambda: twice(lambda: vitals.counters(where, request["counters"])))
    if head is not None and whole:
        readings.start("health", lambda: vitals.get(where, "/health")[0])
        if head["launcher"].get("executor") == "ray":
            readings.start("ray", lambda: vitals.ray_nodes(head, limit_s))
    answer: dict[str, Any] = {"ranks": listed}
    secrets = texts_to_redact(machine, ranks_here, str(request.get("secrets_file") or "")) if whole else []
    for number, rank in enumerate(ranks_here if whole else ()):
        rank["log"] = redacted(readings.value("log %d" % number), secrets)
        rank["gpu"] = readings.value("gpu %d" % number)
    for key in ("gpus", "memory", "traffic", "counters", "health", "ray"):
        answer[key] = readings.value(key)
    return answer


def ranks_of(request: dict[str, Any], machine: Machine) -> list[dict[str, Any]]:
    """Every rank of the cluster on this node with the state of its container or process.

    Raises:
        Unreadable: the Docker engine does not answer.
    """
    runtime, state_dir, cluster = request["runtime"], request["state_dir"], request["cluster"]
    if runtime == "process":
        found = ranks.processes(machine, state_dir, cluster)
    else:
        found = ranks.containers(machine, "%s=%s" % (LABEL_CLUSTER, cluster))
        found = [rank for rank in found if rank["labels"].get(LABEL_STATE_DIR) == state_dir]
    for rank in found:
        rank.update(runtime=runtime, launcher=launcher(rank["rank_dir"]))
    return found


def launcher(rank_dir: str) -> dict[str, Any]:
    """The parts of the launcher document that matter: roles, addresses, the engine's command, hashes of its secrets."""
    document = common.read_json(os.path.join(common.expand(rank_dir), LAUNCHER_FILE)) if rank_dir else {}
    keys = ("group", "node", "rank", "role", "executor", "address", "members", "engine", "ray", "secrets")
    return {key: document[key] for key in keys if key in document}


def texts_to_redact(machine: Machine, present: list[dict[str, Any]], secrets_file: str) -> list[str]:
    """What must not leave the node in a log: values of secrets, and serial numbers."""
    found: set[str] = set()
    for rank in present:
        try:
            path = os.path.join(common.expand(rank["rank_dir"] or "/"), secrets_file)
            found.update(common.read_env_file(path).values())
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


def redacted(value: Any, secrets: list[str]) -> Any:
    """``value`` with every string of ``secrets`` removed from its texts."""
    if isinstance(value, str):
        for text in secrets:
            value = value.replace(text, "(removed)")
        return value
    if isinstance(value, dict):
        return {key: redacted(each, secrets) for key, each in value.items()}
    return [redacted(each, secrets) for each in value] if isinstance(value, list) else value


def log(machine: Machine, rank: dict[str, Any], request: dict[str, Any]) -> list[str]:
    """First and last lines of a rank's log: the start shows the configuration, the end why it exited."""
    first, last = int(request["head_lines"]), int(request["tail_lines"])
    if rank["runtime"] == "docker":
        lines = container_log(machine, rank["name"], "all", first + 1)
        if len(lines) <= first:
            return lines
        return lines[:first] + container_log(machine, rank["name"], str(last), last)
    with open(os.path.join(rank["rank_dir"], "log"), "rb") as file:
        lines = ranks.split(file.read(LOG_BYTES) + b"\n")[0]
        size = os.fstat(file.fileno()).st_size
        if size <= LOG_BYTES:
            return lines[:first] + lines[first:][-last:]
        file.seek(size - LOG_BYTES // 4)
        return lines[:first] + ranks.split(file.read() + b"\n")[0][1:][-last:]


def container_log(machine: Machine, name: str, tail: str, most: int) -> list[str]:
    """At most ``most`` lines from the start of the ``tail`` of a container's log."""
    return list(islice(ranks.log_lines(machine, name, "tail=" + tail, machine.docker_limit_s, LOG_BYTES), most))
