"""Reads the state of a cluster's ranks on this node, in one round trip; nothing is changed.

Prints a document for ``sparkcluster.facts.running``. Counters are read twice, some seconds apart. Readers run in
parallel; a reader that hangs costs only its own value, which becomes ``{"unread": "why"}``.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from sparkcluster.node import common, docker, engine_api, gpu, network, ranks, system
from sparkcluster.node.machine import DOCKER_LIMIT_S, Machine, Readings, Unreadable, marked
from sparkcluster.node.shared import LAUNCHER_FILE, SECRETS_FILE, engine_address

LOG_BYTES = 4 << 20
_LAUNCHER = ("group", "role", "executor", "address", "members", "engine", "ray", "secrets")  # hashes of the secrets

# Runs in the head's container, and is ended by its alarm: uses the environment of the rank (token, path of a staged
# Ray), and queries Ray with the engine's Python, independent of the working directory. Ray 2.60 answers within two
# seconds.
_QUERY_RAY = r"""
import json, os, shutil, signal, sys
signal.alarm(int(sys.argv[3]))
env = dict(os.environ)
for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc")))):
    try:
        block = open("/proc/%d/environ" % pid, "rb").read().decode("utf-8", "surrogateescape")
    except OSError:
        continue
    if "SPARKCLUSTER_RANK=" in block:
        env = dict(item.split("=", 1) for item in block.split("\0") if "=" in item)
        break
python, path = sys.executable, shutil.which(sys.argv[2], path=env.get("PATH"))
if path:
    words = open(path, "rb").readline(512).decode("utf-8", "replace").split()
    if words and words[0].startswith("#!") and "python" in " ".join(words):
        name = words[1] if words[0].endswith("/env") and len(words) > 1 else words[0][2:]
        python = shutil.which(name, path=env.get("PATH")) or python
query = '''
import json, os, sys
sys.path = [path for path in sys.path if path]
try:
    import ray
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    found = sorted(ray.nodes(), key=lambda node: node["Alive"])
    nodes = {node["NodeManagerAddress"]: node["Alive"] for node in found}
    print("sparkcluster-ray " + json.dumps({"ray": nodes}), flush=True)
except Exception as error:
    print("sparkcluster-ray " + json.dumps({"error": type(error).__name__ + ": " + str(error)}), flush=True)
os._exit(0)
'''
os.execve(python, [python, "-c", query, sys.argv[1]], env)
"""


def main(request: dict[str, Any], _lines: Any = None) -> None:
    """Write the document, then exit immediately, even if a reader hangs."""
    common.emit(observe(request, Machine(docker_limit_s=DOCKER_LIMIT_S)))
    os._exit(0)


def observe(request: dict[str, Any], machine: Machine, sleep: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """Read the state of the ranks of ``request["cluster"]`` on this node.

    Args:
        request: cluster; state_dir (absolute, of its ranks); runtime; interval_s between the two readings; limit_s for
            everything; head_lines and tail_lines, the number of log lines from the start and the end of each rank; and
            for the engine api_key (its name among a rank's secrets), api_flags and counters.
        machine: the node.
        sleep: waits between the readings.
    """
    began = time.monotonic()
    limit_s, interval_s = float(request["limit_s"]), float(request["interval_s"])
    readings = Readings(limit_s)

    def twice(reader: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for pause_s in (0.0, interval_s):
            sleep(pause_s)
            found.append({"at_s": round(time.monotonic() - began, 3), **reader()})
        return found

    readings.start("gpus", lambda: twice(lambda: gpu.gpus(machine, gpu.SAMPLED)[0]))
    readings.start("traffic", lambda: twice(lambda: traffic(machine)))
    readings.start("memory", lambda: system.meminfo(machine.text("/proc/meminfo")))
    readings.start("ranks", lambda: ranks_of(request, machine))
    listed = readings.value("ranks")
    ranks_here = listed if isinstance(listed, list) else []
    heads = [rank for rank in ranks_here if rank["launcher"].get("role") == "head" and rank["state"] == "running"]
    for rank in ranks_here:
        readings.start("log " + rank["name"], partial(log, machine, rank, request))
        if rank["state"] == "running" and request["runtime"] == "docker":
            readings.start("gpu " + rank["name"], partial(gpu_inside, rank["name"]))
    for head in heads[:1]:
        url = "http://" + engine_address(head["launcher"].get("engine") or [], request["api_flags"])
        if request["counters"]:
            readings.start(
                "counters", partial(twice, partial(counters, url, request["counters"], keyed(head, request)))
            )
        readings.start("health", partial(health, url))
        if head["launcher"].get("executor") == "ray":
            readings.start("ray", partial(ray_nodes, request["runtime"], head, limit_s))
    answer: dict[str, Any] = {"ranks": listed}
    for rank in ranks_here:
        rank.update(log=readings.value("log " + rank["name"]), gpu=readings.value("gpu " + rank["name"]))
    for key in ("gpus", "memory", "traffic", "counters", "health", "ray"):
        answer[key] = readings.value(key)
    return answer


def ranks_of(request: dict[str, Any], machine: Machine) -> list[dict[str, Any]]:
    """Every rank of the cluster on this node, with the parts of its launcher document that are used.

    Raises:
        Unreadable: Docker does not answer.
    """
    found = ranks.of_cluster(machine, request["runtime"], request["state_dir"], request["cluster"])
    for rank in found:
        document = common.read_json(os.path.join(rank["rank_dir"] or "/", LAUNCHER_FILE))
        rank["launcher"] = {key: document[key] for key in _LAUNCHER if key in document}
    return found


def log(machine: Machine, rank: dict[str, Any], request: dict[str, Any]) -> list[str]:
    """First and last lines of a rank's log, without secrets: the configuration at its start, the error at its end."""
    first, last = int(request["head_lines"]), int(request["tail_lines"])
    hidden = [*ranks.secrets(rank["rank_dir"]), *serial(machine)]
    if request["runtime"] == "docker":
        lines = container_log(machine, rank["name"], "all", first + 1, hidden)
        if len(lines) > first:
            lines = lines[:first] + container_log(machine, rank["name"], str(last), last, hidden)
    else:
        with open(os.path.join(rank["rank_dir"], "log"), "rb") as file:
            start = ranks.text_lines(file.read(LOG_BYTES), hidden)
            file.seek(max(file.tell(), os.fstat(file.fileno()).st_size - LOG_BYTES))
            lines = start[:first] + (start[first:] + ranks.text_lines(file.read(), hidden))[-last:]
    return lines


def serial(machine: Machine) -> list[str]:
    """The node's serial numbers."""
    found: list[str] = re.findall(r'SERIAL\w*="?([^"\n]{6,})', machine.text("/etc/dgx-release", ""))
    return found


def container_log(machine: Machine, name: str, tail: str, most: int, hidden: Iterable[str]) -> list[str]:
    """At most ``most`` lines from the start of the ``tail`` of a container's log."""
    lines: list[str] = []
    for piece in ranks.log_pieces(machine, name, "tail=" + tail, machine.docker_limit_s):
        lines += ranks.text_lines(piece, hidden)
        if len(lines) >= most:
            break
    return lines[:most]


def gpu_inside(name: str) -> str:
    """Output of nvidia-smi in a container, which can lose a GPU that the host still has.

    Raises:
        Unreadable: the container has no nvidia-smi, or it did not answer.
    """
    code, output = Machine().run(docker.execute(name, "nvidia-smi", "-L"), 5)
    if code in (125, docker.NOT_EXECUTABLE, docker.NOT_FOUND):
        raise Unreadable("no nvidia-smi in the container")
    # The card's UUID is removed: no check uses it.
    return re.sub(r"\s*\(UUID:.*?\)", "", output.strip())[:300]


def ray_nodes(runtime: str, head: dict[str, Any], limit_s: float) -> dict[str, bool]:
    """Whether each node that ever joined is alive, by address, from Ray's own list.

    Raises:
        Unreadable: Ray could not be queried.
    """
    if runtime != "docker":
        raise Unreadable("Ray is not queried with runtime process")
    document = head["launcher"]
    alarm_s = max(2, int(limit_s) - 1)
    words = [head["python"] or "python3", "-c", _QUERY_RAY]
    words += [document["ray"]["address"], document["engine"][0], str(alarm_s)]
    code, output = Machine().run(docker.execute(head["name"], *words), limit_s)
    answer = marked(output, "sparkcluster-ray ") or {}
    if "ray" in answer:
        return dict(answer["ray"])
    last = (output.strip().splitlines() or ["no answer within %d s" % alarm_s])[-1]
    raise Unreadable(str(answer.get("error", "cannot query Ray (exit %d): %s" % (code, last)))[:300])


def health(url: str) -> int:
    """Status of ``/health``."""
    return engine_api.get(url + "/health")[0]


def keyed(rank: dict[str, Any], request: dict[str, Any]) -> dict[str, str]:
    """The header with the API key of a rank, without which some engines show no metrics; empty if it has none."""
    path = os.path.join(rank["rank_dir"] or "/", SECRETS_FILE)
    with contextlib.suppress(OSError):
        return engine_api.keyed({"key_file": path, "key_name": request["api_key"]})
    return {}


def counters(url: str, names: dict[str, list[str]], headers: dict[str, str]) -> dict[str, float | None]:
    """Token counters and queues of the engine; None for missing ones."""
    return engine_api.metrics(engine_api.get(url + "/metrics", headers)[1], names)


def traffic(machine: Machine) -> dict[str, Any]:
    """Bytes sent since boot by RDMA and by sockets of the same ports, and pages swapped.

    mlx5's counters of RDMA ports count only RDMA, and those of network devices only sockets.
    """
    sockets = {}
    for name in machine.names("/sys/class/infiniband"):
        for device in machine.names("/sys/class/infiniband/%s/device/net" % name):
            sent = machine.line("/sys/class/net/%s/statistics/tx_bytes" % device)
            if sent is not None and sent.isdigit():
                sockets[device] = int(sent)
    return {
        "rdma_bytes": network.rdma_bytes(machine, "port_xmit_data"),
        "socket_bytes": sockets,
        "swapped_pages": system.swapped_pages(machine),
    }
