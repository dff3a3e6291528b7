"""What the ranks of one cluster are seen doing on this node, in one round trip; nothing is changed.

Answers one document that ``sparkcluster.facts.running`` reads. What moves is read twice, some seconds apart.
Readers run side by side, and one that hangs costs its own reading alone, which is then ``{"unread": "why"}``.
Python 3.8, standard library.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import threading
import time
import urllib.parse
from typing import Any, Callable

from sparkcluster.node import common, watch
from sparkcluster.node.machine import Machine, Unreadable, because

CLUSTER = "io.sparkcluster.cluster"
HTTP_S = 3.0
LOG_BYTES = 4 << 20
_SMI = "utilization.gpu,power.draw,clocks.sm,temperature.gpu"
_COUNTERS = {
    "generated": ("vllm:generation_tokens_total",),
    "prompted": ("vllm:prompt_tokens_total",),
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    # called gpu_cache_usage_perc before vLLM 0.11
    "kv_cache": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
}

# Runs inside the head's container, as a process of its own that its alarm ends: takes over the environment of the
# rank (token, path of a Ray that was brought along), then asks Ray in the engine's own Python.
_ASK_RAY = r"""
import json, os, shutil, signal, sys
signal.alarm(int(sys.argv[3]))
env = dict(os.environ)
for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc")))):
    try:
        block = open("/proc/%d/environ" % pid, "rb").read().decode("utf-8", "surrogateescape")
    except OSError:
        continue
    found = dict(item.split("=", 1) for item in block.split("\0") if "=" in item)
    if "SPARKCLUSTER_RANK" in found:
        env = found
        break
python, path = sys.executable, shutil.which(sys.argv[2], path=env.get("PATH"))
if path:
    words = open(path, "rb").readline(512).decode("utf-8", "replace").split()
    if words and words[0].startswith("#!") and "python" in " ".join(words):
        name = words[1] if words[0].endswith("/env") and len(words) > 1 else words[0][2:]
        python = shutil.which(name, path=env.get("PATH")) or python
ask = '''
import json, os, sys
try:
    import ray
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    nodes = {n["NodeManagerAddress"]: bool(n.get("Alive", n.get("alive"))) for n in
             sorted(ray.nodes(), key=lambda n: bool(n.get("Alive", n.get("alive"))))}
    print(json.dumps({"ray": nodes}), flush=True)
except Exception as error:
    print(json.dumps({"error": "%s: %s" % (type(error).__name__, error)}), flush=True)
os._exit(0)
'''
os.execve(python, [python, "-c", ask, sys.argv[1]], env)
"""


class Jobs:
    """Runs readers side by side and keeps what each returned until ``limit_s`` is over."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._until = time.monotonic() + limit_s
        self._values: dict[str, Any] = {}
        self._threads: dict[str, threading.Thread] = {}

    def start(self, key: str, reader: Callable[[], Any]) -> None:
        """Begin a reading in a thread that cannot keep the program from ending."""

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
    """Write the document, then end at once: a reader that hangs holds nothing up."""
    print(json.dumps(look(request, Machine())), flush=True)
    os._exit(0)


def look(request: dict[str, Any], machine: Machine, sleep: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """Look at the ranks of ``request["cluster"]`` on this node.

    Args:
        request: cluster, state_dir (absolute: whose ranks), runtime, interval_s between the two readings, limit_s for
            everything, and how many log lines from the start (head_lines) and the end (tail_lines) of each rank.
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

    jobs.start("gpus", lambda: twice(lambda: gpu(machine)))
    jobs.start("traffic", lambda: twice(lambda: traffic(machine)))
    jobs.start("ranks", lambda: ranks(request, machine))
    listed = jobs.value("ranks")
    known = listed if isinstance(listed, list) else []
    head = next((one for one in known if one["launcher"].get("role") == "head" and one["state"] == "running"), None)
    for number, rank in enumerate(known):
        jobs.start("log %d" % number, lambda rank=rank: log(rank, request))  # type: ignore[misc]
        if rank["state"] == "running" and rank["runtime"] == "docker":
            jobs.start("gpu %d" % number, lambda rank=rank: gpu_inside(rank["name"]))  # type: ignore[misc]
    if head is not None:
        where = api(head["launcher"].get("engine") or [])
        jobs.start("counters", lambda: twice(lambda: counters(where)))
        jobs.start("health", lambda: get(where, "/health")[0])
        if head["launcher"].get("executor") == "ray":
            jobs.start("ray", lambda: ray_nodes(head, limit_s))
    answer: dict[str, Any] = {"ranks": listed}
    for number, rank in enumerate(known):
        rank["log"] = jobs.value("log %d" % number)
        rank["gpu"] = jobs.value("gpu %d" % number)
    for key in ("gpus", "traffic", "counters", "health", "ray"):
        answer[key] = jobs.value(key)
    answer["look_s"] = round(time.monotonic() - began, 3)
    return answer


def ranks(request: dict[str, Any], machine: Machine) -> list[dict[str, Any]]:
    """Every rank of the cluster on this node with what its container or process says of itself.

    Raises:
        Unreadable: the Docker engine cannot be asked.
    """
    if request.get("runtime") == "process":
        return [process(path) for path in process_dirs(request)]
    chosen = json.dumps({"label": ["%s=%s" % (CLUSTER, request["cluster"])]})
    status, listed = machine.docker("/containers/json?all=1&filters=" + urllib.parse.quote(chosen))
    if status != 200 or not isinstance(listed, list):
        raise Unreadable("the Docker engine answers %d to the list of containers" % status)
    found = []
    for each in listed:
        labels = each.get("Labels") or {}
        if labels.get("io.sparkcluster.state_dir") != request["state_dir"]:
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
                "launcher": launcher(labels.get("io.sparkcluster.rank_dir", "")),
                "python": next((w for w in [document.get("Path"), *(document.get("Args") or [])] if _python(w)), None),
                "gpu": None,
            }
        )
    return sorted(found, key=lambda rank: str(rank["name"]))


def _python(word: Any) -> bool:
    return isinstance(word, str) and re.match(r"^python[\d.]*$", os.path.basename(word)) is not None


def process_dirs(request: dict[str, Any]) -> list[str]:
    """Folders of the ranks of runtime ``process``."""
    base = os.path.join(common.cluster_dir(request["state_dir"], request["cluster"]), "ranks")
    try:
        names = sorted(os.listdir(base))
    except OSError:
        return []
    return [os.path.join(base, name) for name in names if os.path.exists(os.path.join(base, name, "rank.json"))]


def process(rank_dir: str) -> dict[str, Any]:
    """A rank of runtime ``process``."""
    record = common.read_json(os.path.join(rank_dir, "rank.json"))
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
    """What matters of the launcher document: who the ranks are, and the engine's command."""
    document = common.read_json(os.path.join(common.expand(rank_dir), "launcher.json")) if rank_dir else None
    if not isinstance(document, dict):
        return {}
    keys = ("group", "node", "rank", "role", "executor", "address", "members", "engine", "ray")
    return {key: document.get(key) for key in keys}


def log(rank: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """First and last lines of a rank's log: an engine says at its start what it runs on, at its end why it ended."""
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
    """At most ``most`` lines of a container's log, and whether that is all that was asked for."""
    query = "/containers/%s/logs?stdout=1&stderr=1&tail=%s" % (urllib.parse.quote(name), tail)
    connection, response = watch.docker_get(query)
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


def gpu(machine: Machine) -> dict[str, Any]:
    """What the first GPU is doing now.

    Raises:
        Unreadable: nvidia-smi's own words.
    """
    code, output = machine.run(["nvidia-smi", "--query-gpu=" + _SMI, "--format=csv,noheader,nounits"])
    line = (output.strip().splitlines() or ["no output"])[0]
    fields = [field.strip() for field in line.split(",")]
    if code or len(fields) != 4:
        raise Unreadable("nvidia-smi exit %d: %s" % (code, line))
    names = ("utilization_percent", "power_w", "sm_clock_mhz", "temperature_c")
    return {name: _figure(fields[at]) for at, name in enumerate(names)}


def _figure(text: str) -> float | None:
    return float(text) if re.match(r"^\d+(\.\d+)?$", text) else None


def gpu_inside(name: str) -> str:
    """What nvidia-smi says in a container, which can lose a GPU that its host still has.

    Raises:
        Unreadable: the container has no nvidia-smi, or it did not answer.
    """
    code, output = _docker(["exec", name, "nvidia-smi", "-L"], 5)
    if code in (125, 126, 127):
        raise Unreadable("no nvidia-smi in the container")
    # The card's own number has no part in any verdict.
    return re.sub(r"\s*\(UUID:.*?\)", "", output.strip())[:300]


def _docker(words: list[str], limit_s: float) -> tuple[int, str]:
    try:
        done = subprocess.run(
            ["docker", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
        )
    except FileNotFoundError:
        raise Unreadable("docker is not installed")
    except subprocess.TimeoutExpired:
        raise Unreadable("no answer within %g s: docker %s" % (limit_s, words[0]))
    return done.returncode, done.stdout.decode("utf-8", "replace")


def ray_nodes(head: dict[str, Any], limit_s: float) -> dict[str, bool]:
    """Whether each node that ever joined is alive, by address, as Ray itself lists them.

    Raises:
        Unreadable: Ray could not be asked.
    """
    if head["runtime"] != "docker":
        raise Unreadable("runtime process: Ray is asked in containers alone")
    document = head["launcher"]
    alarm_s = max(2, int(limit_s) - 1)
    command = [head["python"] or "python3", "-c", _ASK_RAY]
    words = [document["ray"]["address"], document["engine"][0], str(alarm_s)]
    code, output = _docker(["exec", head["name"], *command, *words], limit_s)
    for line in reversed(output.splitlines()):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict) and "ray" in answer:
            return {str(address): bool(alive) for address, alive in answer["ray"].items()}
        if isinstance(answer, dict) and "error" in answer:
            raise Unreadable(str(answer["error"])[:300])
    last = (output.strip().splitlines() or ["no answer within %d s" % alarm_s])[-1]
    raise Unreadable("Ray cannot be asked (exit %d): %s" % (code, last[:300]))


def api(engine: list[str]) -> tuple[str, int]:
    """Address and port at which the engine with this command is reached from its own node."""
    found = {"--host": "127.0.0.1", "--port": "8000"}
    for at, word in enumerate(engine):
        name, equals, value = word.partition("=")
        if name in found:
            found[name] = value if equals else engine[at + 1] if at + 1 < len(engine) else found[name]
    return watch.connectable(found["--host"]), int(found["--port"])


def get(where: tuple[str, int], path: str) -> tuple[int, str]:
    """Status and text that the engine answers to ``GET path``."""
    connection = http.client.HTTPConnection(where[0], where[1], timeout=HTTP_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(1 << 20).decode("utf-8", "replace")
    finally:
        connection.close()


def counters(where: tuple[str, int]) -> dict[str, float | None]:
    """Token counters and queues, each the sum over all engines behind this API.

    Raises:
        Unreadable: the endpoint has none.
    """
    status, text = get(where, "/metrics")
    if status != 200:
        raise Unreadable("/metrics answers %d" % status)
    return metrics(text)


def metrics(text: str) -> dict[str, float | None]:
    """The same from Prometheus' text form."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = re.match(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\S+)", line)
        if match:
            try:
                found[match.group(1)] = found.get(match.group(1), 0.0) + float(match.group(2))
            except ValueError:
                continue
    return {name: next((found[one] for one in names if one in found), None) for name, names in _COUNTERS.items()}


def traffic(machine: Machine) -> dict[str, Any]:
    """Bytes that left by RDMA and by sockets of the same ports since boot, and pages swapped.

    The counters of mlx5's RDMA ports count RDMA alone and those of its network devices sockets alone.
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
