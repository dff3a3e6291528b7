"""GPU, token counters, Ray's members and traffic of a node while an engine works. Changes nothing."""

from __future__ import annotations

import http.client
import re
from typing import Any

from sparkcluster.node import docker, engine_metrics
from sparkcluster.node.machine import Machine, Unreadable, marked

HTTP_S = 3.0

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


def gpu_inside(name: str) -> str:
    """What nvidia-smi prints in a container, which can lose a GPU that its host still has.

    Raises:
        Unreadable: the container has no nvidia-smi, or it did not answer.
    """
    code, output = _inside(name, ["nvidia-smi", "-L"], 5)
    if code in (125, docker.NOT_EXECUTABLE, docker.NOT_FOUND):
        raise Unreadable("no nvidia-smi in the container")
    # The card's UUID is left out: no check uses it.
    return re.sub(r"\s*\(UUID:.*?\)", "", output.strip())[:300]


def _inside(name: str, words: list[str], limit_s: float) -> tuple[int, str]:
    """Exit code and output of a program in a container."""
    return Machine().run(docker.execute(name, *words), limit_s)


def ray_nodes(head: dict[str, Any], limit_s: float) -> dict[str, bool]:
    """Whether each node that ever joined is alive, by address, as Ray itself lists them.

    Raises:
        Unreadable: Ray could not be queried.
    """
    if head["runtime"] != "docker":
        raise Unreadable("with runtime process Ray is not queried")
    document = head["launcher"]
    alarm_s = max(2, int(limit_s) - 1)
    command = [head["python"] or "python3", "-c", _QUERY_RAY]
    words = [document["ray"]["address"], document["engine"][0], str(alarm_s)]
    code, output = _inside(head["name"], [*command, *words], limit_s)
    answer = marked(output, "sparkcluster-ray ") or {}
    if "ray" in answer:
        return {str(address): bool(alive) for address, alive in answer["ray"].items()}
    last = (output.strip().splitlines() or ["no answer within %d s" % alarm_s])[-1]
    raise Unreadable(str(answer.get("error", "cannot query Ray (exit %d): %s" % (code, last)))[:300])


def api(engine: list[str], flags: dict[str, str]) -> tuple[str, int]:
    """Address and port at which an engine is reached from its node, by the ``host`` and ``port`` ``flags`` it has."""
    found = {flags["host"]: "127.0.0.1", flags["port"]: "8000"}
    for at, word in enumerate(engine):
        name, equals, value = word.partition("=")
        if name in found:
            found[name] = value if equals else engine[at + 1] if at + 1 < len(engine) else found[name]
    return engine_metrics.connectable(found[flags["host"]]), int(found[flags["port"]])


def get(where: tuple[str, int], path: str) -> tuple[int, str]:
    """Status and text that the engine answers to ``GET path``."""
    connection = http.client.HTTPConnection(where[0], where[1], timeout=HTTP_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(1 << 20).decode("utf-8", "replace")
    finally:
        connection.close()


def counters(where: tuple[str, int], names: dict[str, list[str]]) -> dict[str, float | None]:
    """Token counters and queues of the engine, by ``engine_metrics.metrics``; Unreadable if the endpoint has none."""
    status, text = get(where, "/metrics")
    if status != 200:
        raise Unreadable("/metrics answers %d" % status)
    return engine_metrics.metrics(text, names)


def traffic(machine: Machine) -> dict[str, Any]:
    """Bytes that left by RDMA and by sockets of the same ports since boot, and pages swapped.

    The counters of mlx5's RDMA ports count RDMA only, and those of its network devices sockets only.
    """
    rdma, sockets = {}, {}
    for name in machine.names("/sys/class/infiniband"):
        # in units of four octets (IBTA's PortXmitData)
        words = machine.line("/sys/class/infiniband/%s/ports/1/counters/port_xmit_data" % name)
        if words is not None and words.isdigit():
            rdma[name] = 4 * int(words)
        for device in machine.names("/sys/class/infiniband/%s/device/net" % name):
            sent = machine.line("/sys/class/net/%s/statistics/tx_bytes" % device)
            if sent is not None and sent.isdigit():
                sockets[device] = int(sent)
    pages = [
        int(number) for number in re.findall(r"^pswp(?:in|out) (\d+)$", machine.text("/proc/vmstat"), re.MULTILINE)
    ]
    return {"rdma_bytes": rdma, "socket_bytes": sockets, "swapped_pages": sum(pages)}
