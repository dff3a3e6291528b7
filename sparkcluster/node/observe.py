"""State of a cluster's ranks on this node, in one round trip; nothing is changed.

Answers one document that ``sparkcluster.facts.running`` reads. What moves is read twice, some seconds apart.
Readers run side by side, and a reader that hangs costs only its own reading, which is then ``{"unread": "why"}``.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from sparkcluster.node import common, docker, engine_api, gpu, network, ranks, system
from sparkcluster.node.machine import DOCKER_LIMIT_S, Machine, Readings, Unreadable, marked
from sparkcluster.node.shared import LAUNCHER_FILE, engine_address

LOG_BYTES = 4 << 20
_LAUNCHER = ("group", "role", "executor", "address", "members", "engine", "ray", "secrets")  # hashes of the secrets

# Runs in the head's container, as a process that its alarm ends: takes the environment of the rank (token, path of a
# Ray that was brought), then queries Ray in the engine's Python, whatever is in the working directory. Ray 2.60 answers
# within two seconds.
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
    """Write the document, then exit at once, whether or not a reader hangs."""
    common.emit(observe(request, Machine(docker_limit_s=DOCKER_LIMIT_S)))
    os._exit(0)


def observe(request: dict[str, Any], machine: Machine, sleep: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """Read the state of the ranks of ``request["cluster"]`` on this node.

    Args:
        request: cluster, state_dir (absolute: whose ranks), runtime, interval_s between the two readings, limit_s for
            everything, how many log lines from the start (head_lines) and the end (tail_lines) of each rank,
            secrets_file, the name of the file with a rank's secrets, whose values are removed from logs, and of the
            engine api_key (its name in that file), api_flags and counters.
        machine: the node.
        sleep: what waits between the readings.
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
        readings.start("counters", partial(twice, partial(counters, url, request["counters"], keyed(head, request))))
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
    """Every rank of the cluster on this node, with the parts of its launcher document that matter.

    Raises:
        Unreadable: the Docker engine does not answer.
    """
    found = ranks.of_cluster(machine, request["runtime"], request["state_dir"], request["cluster"])
    for rank in found:
        document = common.read_json(os.path.join(rank["rank_dir"] or "/", LAUNCHER_FILE))
        rank["launcher"] = {key: document[key] for key in _LAUNCHER if key in document}
    return found


def log(machine: Machine, rank: dict[str, Any], request: dict[str, Any]) -> list[str]:
    """First and last lines of a rank's log, without secrets: the start has the configuration, the end why it exited."""
    first, last = int(request["head_lines"]), int(request["tail_lines"])
    if request["runtime"] == "docker":
        lines = container_log(machine, rank["name"], "all", first + 1)
        if len(lines) > first:
            lines = lines[:first] + container_log(machine, rank["name"], str(last), last)
    else:
        with open(os.path.join(rank["rank_dir"], "log"), "rb") as file:
            start = ranks.text_lines(file.read(LOG_BYTES))
            file.seek(max(file.tell(), os.fstat(file.fileno()).st_size - LOG_BYTES))
            lines = start[:first] + (start[first:] + ranks.text_lines(file.read()))[-last:]
    for secret in secrets(machine, rank, request["secrets_file"]):
        lines = [line.replace(secret, "(removed)") for line in lines]
    return lines


def secrets(machine: Machine, rank: dict[str, Any], name: str) -> list[str]:
    """A rank's secrets and the node's serial number, longest first; shorter ones than these may be ordinary words."""
    values = re.findall(r'SERIAL\w*="?([^"\n]+)', machine.text("/etc/dgx-release", ""))
    with contextlib.suppress(OSError):
        values += common.read_env_file(os.path.join(rank["rank_dir"] or "/", name)).values()
    return sorted((value for value in values if len(value) >= 6), key=len, reverse=True)


def container_log(machine: Machine, name: str, tail: str, most: int) -> list[str]:
    """At most ``most`` lines from the start of the ``tail`` of a container's log."""
    lines: list[str] = []
    for piece in ranks.log_pieces(machine, name, "tail=" + tail, machine.docker_limit_s):
        lines += ranks.text_lines(piece)
        if len(lines) >= most:
            break
    return lines[:most]


def gpu_inside(name: str) -> str:
    """What nvidia-smi prints in a container, which can lose a GPU that its host still has.

    Raises:
        Unreadable: the container has no nvidia-smi, or it did not answer.
    """
    code, output = Machine().run(docker.execute(name, "nvidia-smi", "-L"), 5)
    if code in (125, docker.NOT_EXECUTABLE, docker.NOT_FOUND):
        raise Unreadable("no nvidia-smi in the container")
    # The card's UUID is left out: no check uses it.
    return re.sub(r"\s*\(UUID:.*?\)", "", output.strip())[:300]


def ray_nodes(runtime: str, head: dict[str, Any], limit_s: float) -> dict[str, bool]:
    """Whether each node that ever joined is alive, by address, as Ray itself lists them.

    Raises:
        Unreadable: Ray could not be queried.
    """
    if runtime != "docker":
        raise Unreadable("with runtime process Ray is not queried")
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
    path = os.path.join(rank["rank_dir"] or "/", request["secrets_file"])
    with contextlib.suppress(OSError):
        return engine_api.keyed({"key_file": path, "key_name": request["api_key"]})
    return {}


def counters(url: str, names: dict[str, list[str]], headers: dict[str, str]) -> dict[str, float | None]:
    """Token counters and queues of the engine; None for those that it lacks."""
    return engine_api.metrics(engine_api.get(url + "/metrics", headers)[1], names)


def traffic(machine: Machine) -> dict[str, Any]:
    """Bytes that left by RDMA and by sockets of the same ports since boot, and pages swapped.

    The counters of mlx5's RDMA ports count RDMA only, and those of its network devices sockets only.
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
