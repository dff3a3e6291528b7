"""Documents of ``telemetry.live`` for clusters that a test describes; the figures follow a fixed curve."""

from __future__ import annotations

import json
import math
from typing import Any

Document = dict[str, Any]
AT = 1_796_097_600.0
POINTS, TICK_S = 180, 5
GIB = 2**30
HOSTILE = "<script>document.title='run'</script><img src=x onerror=alert(1)>" + "x" * 300


def wave(at: int, middle: float, size: float, shift: float = 0) -> float:
    return middle + size * (math.sin(at / 17 + shift) + math.sin(at / 5 + 2 * shift) / 3)


def spark_point(at: int, number: int) -> dict[str, float | None]:
    return {
        "available_bytes": wave(at, 21, 0.4, number) * GIB,
        "gpu_utilization": min(1, wave(at, 0.86, 0.08, number)),
        "gpu_power_w": wave(at, 57, 6, number),
        "temperature_c": wave(at, 64, 1, number),
        "rdma_per_s": wave(at, 2.4e9, 5e8, number),
        "pressure_memory": 0.0,
    }


def group_point(at: int) -> dict[str, float | None]:
    return {
        "tokens_per_s": wave(at, 58, 12),
        "prompt_tokens_per_s": wave(at, 800, 200),
        "ttft_p95_s": 0.75 if wave(at, 0, 1) < 0.6 else 1.0,
        "itl_p95_s": 0.1,
        "kv_cache": wave(at, 0.42, 0.1),
        "running": 3.0,
        "waiting": 1.0,
    }


def vitals(point: dict[str, Any]) -> Document:
    way = {"sent_per_s": point["rdma_per_s"] / 4, "received_per_s": point["rdma_per_s"] / 4, "errors": 0}
    return {
        "available_bytes": point["available_bytes"],
        "total_bytes": 130_595_926_016,
        "cached_bytes": 3 * GIB,
        "swap_used_bytes": 0,
        "swapped_pages_per_s": 0.0,
        "pressure": {"cpu": 0.02, "memory": 0.0, "io": 0.01},
        "disk_read_per_s": 0.0,
        "disk_written_per_s": 40_960.0,
        "rdma": {"rocep1s0f1": way, "roceP2p1s0f1": way},
        "gpu": {
            "utilization": point["gpu_utilization"],
            "clock_mhz": 2405.0,
            "power_w": point["gpu_power_w"],
            "temperature_c": point["temperature_c"],
            "throttle": [],
            "source": "nvidia-smi",
        },
        "system_power_w": None,
    }


def load() -> Document:
    more = {"ttft_p50_s": 0.25, "itl_p50_s": 0.05, "hit_rate": 0.61, "acceptance": 0.72, "accepted_length": 2.4}
    return {**group_point(POINTS - 1), **more, "preemptions": 0.0}


def model(nodes: list[str], groups: int = 1, **changes: Any) -> Document:
    """A model that serves with openai/gpt-oss-120b on ``nodes``, in ``groups``."""
    size = len(nodes) // groups
    of_groups = [nodes[start : start + size] for start in range(0, size * groups, size)]
    return {
        "name": None,
        "cluster": "sparks",
        "state": "serving",
        "why": None,
        "next": 'sparkcluster ask sparks.yaml "Hello"',
        "endpoint": "http://10.77.0.11:8000/v1",
        "model": "openai/gpt-oss-120b",
        "image": "nvcr.io/nvidia/vllm:26.10-py3",
        "digest": "nvcr.io/nvidia/vllm@sha256:0f5d",
        "release": 7,
        "released_at": AT - 93_600,
        "lease": None,
        "interrupted": None,
        "staging": None,
        "enabled": True,
        "guards": {},
        "groups": [
            {
                "name": f"pair-{number}" if groups > 1 else "default",
                "nodes": members,
                "endpoint": f"http://10.77.0.{11 + size * number}:8000/v1",
                "state": "serving",
                "release": 7,
                "ready": True,
                "why": None,
                "uptime_s": 93_540.0,
                "load": load(),
                "warning": None,
            }
            for number, members in enumerate(of_groups)
        ],
        "nodes": [
            {
                "name": name,
                "host": f"10.77.0.{11 + number}",
                "role": "head" if number % size == 0 else "worker",
                "state": "running",
                "why": None,
                "container": f"sparkcluster-sparks-7-{name}",
                "image": "sha256:e89037f7421b",
                "ray": "alive",
                "memory": {"total_bytes": 130_595_926_016, "available_bytes": 21 * GIB},
            }
            for number, name in enumerate(nodes)
        ],
        "findings": [],
        "drawing": drawing(nodes),
        **changes,
    }


def drawing(nodes: list[str], marks: dict[str, str] | None = None) -> list[Any]:
    lines: list[Any] = [[[f"{len(nodes)} nodes, a {'direct cable' if len(nodes) == 2 else 'switch'}", ""]]]
    for number, name in enumerate(nodes):
        role = f"rank {number}" if number else "head"
        lines.append([["", ""], [f"{name}, {role}, 10.77.0.{11 + number}", "bold"]])
        lines += [[["      ", ""], [f"✗ {code}", "bold bad"]] for at, code in (marks or {}).items() if at == name]
        for rail, (twin, hca) in enumerate([("enp1s0f1np1  ", "rocep1s0f1  "), ("enP2p1s0f1np1", "roceP2p1s0f1")]):
            text = f"p1 {twin} 192.168.{177 + rail}.{11 + number} {hca} GID 3 200G MTU 9000"
            lines.append([[f"  {'AB'[rail]} ", ""], [text, ""]])
    return [*lines, [["A=192.168.177.0/24  B=192.168.178.0/24", ""]]]


def found(code: str, severity: str, summary: str, *remedy: str, node: str | None = None, seen: str = "", why: str = ""):
    more = {"file": None, "line": None, "step": None}
    return {
        "code": code, "severity": severity, "summary": summary, "node": node, "seen": seen, "why": why, "remedy": list(remedy), **more,
    }  # fmt: skip


def cluster(count: int = 2, *models: Document, **changes: Any) -> tuple[Document, Document]:
    """The document and the history of ``count`` Sparks; by default with one model on all of them."""
    names = [f"spark-{number + 1}" for number in range(count)]
    found_models = list(models) or [model(names)]
    keys = [f"{each['cluster']}/{group['name']}" for each in found_models for group in each["groups"] if group["load"]]
    points = [
        {
            "at": AT - (POINTS - 1 - at) * TICK_S,
            "nodes": {name: spark_point(at, number) for number, name in enumerate(names)},
            "groups": {key: group_point(at + 9 * number) for number, key in enumerate(keys)},
        }
        for at in range(POINTS)
    ]
    document = {
        "at": AT,
        "inventory": "sparks",
        "state": "serving",
        "checked_s": 24.0,
        "models": found_models,
        "gateway": None,
        "nodes": {
            name: {"state": "up", "why": None, "age_s": 0.6, "vitals": vitals(points[-1]["nodes"][name])}
            for name in names
        },
        **changes,
    }
    return document, columns(points)


def columns(points: list[Any]) -> Document:
    """The history of ``points``: a list per signal instead of a value per point."""
    parts = {
        kind: {
            key: {name: [point[kind][key][name] for point in points] for name in first}
            for key, first in points[-1][kind].items()
        }
        for kind in ("nodes", "groups")
    }
    return {"at": [point["at"] for point in points], **parts}


def last(history: Document) -> Document:
    """The newest point of a history."""
    return {
        "at": history["at"][-1],
        **{
            kind: {key: {name: values[-1] for name, values in each.items()} for key, each in history[kind].items()}
            for kind in ("nodes", "groups")
        },
    }


def make_unknown(series: dict[str, list[float | None]], since: int) -> None:
    """Make ``series`` unknown from point ``since`` on."""
    for values in series.values():
        values[since:] = [None] * (len(values) - since)


def serving() -> tuple[Document, Document]:
    document, history = cluster()
    for values in history["groups"]["sparks/default"].values():
        values[60:72] = [None] * 12
    document["models"][0]["findings"] = [
        found(
            "HOST-017", "warning", "the clock of spark-2 is behind", "sparkcluster setup sparks.yaml --only clock",
            node="spark-2", seen="by 41.3 s against the others", why="Log lines of ranks cannot be ordered",
        ),
    ]  # fmt: skip
    return document, history


def lost() -> tuple[Document, Document]:
    document, history = cluster(state="degraded")
    make_unknown(history["nodes"]["spark-2"], 165)
    make_unknown({"rate": history["groups"]["sparks/default"]["ttft_p95_s"]}, 168)
    history["groups"]["sparks/default"]["tokens_per_s"][166:] = [0.0] * 14
    document["nodes"]["spark-2"] = {"state": "lost", "why": "no answer within 10 s", "age_s": 74.2, "vitals": None}
    (serves,) = document["models"]
    serves |= {"state": "degraded", "why": "spark-2: no answer within 10 s", "next": "sparkcluster doctor sparks.yaml"}
    serves |= {"endpoint": None, "drawing": drawing(["spark-1", "spark-2"], {"spark-2": "SSH-001"})}
    serves["groups"][0] |= {"state": "degraded", "why": "no token within 15 s: it hangs or processes a long prompt"}
    serves["groups"][0]["load"] |= {"tokens_per_s": 0.0, "ttft_p50_s": None, "ttft_p95_s": None, "itl_p95_s": None}
    serves["findings"] = [
        found(
            "RUN-021", "warning", "the guard of spark-1 has restarted the rank twice", "sparkcluster logs sparks.yaml --failed",
            node="spark-1",
        ),
        found(
            "SSH-001", "error", "spark-2 does not answer", "ping 10.77.0.12", "sparkcluster preflight sparks.yaml",
            node="spark-2", seen="no answer within 10 s", why="A group runs on all of its nodes or not at all",
        ),
        found(
            "RUN-003", "error", "the model hangs: its engine accepts requests and generates no tokens",
            "on spark-1: docker restart sparkcluster-sparks-7-spark-1   starts its rank again", "or sparkcluster up sparks.yaml", node="spark-1", seen="812 tokens before and after 15 s, 2 running",
            why="A collective that one rank does not join hangs all of them",
        ),
    ]  # fmt: skip
    return document, history


def loading() -> tuple[Document, Document]:
    """Three models behind a gateway: one serves, one loads, one is loaded on demand."""
    names = ["spark-1", "spark-2"]
    lease = {"operator": "me@laptop (4711)", "operation": "up", "since": AT - 140, "epoch": 3}
    starts = model(["spark-2"], name="code", cluster="sparks-code", model="Qwen/Qwen3-Coder-Next", state="starting")
    starts |= {"lease": lease, "release": None, "released_at": None, "endpoint": None, "enabled": False}
    starts |= {"next": "sparkcluster logs sparks.yaml --model code -f", "drawing": drawing(names)}
    starts["groups"][0] |= {"state": "starting", "load": None, "ready": False, "uptime_s": 96.0, "endpoint": None}
    waits = model(["spark-1"], name="embed", cluster="sparks-embed", model="BAAI/bge-m3", state="on demand", groups=1)
    waits |= {"groups": [], "endpoint": None, "next": "sparkcluster load sparks.yaml embed", "drawing": drawing(names)}
    waits["nodes"][0] |= {"role": None, "state": "empty", "container": None}
    gateway = {
        "node": "spark-1",
        "endpoint": "http://10.77.0.11:8080/v1",
        "why": None,
        "models": [
            {"name": "chat", "on_demand": False, "state": "ready", "why": None, "waiting": 0, "in_flight": 3,
             "last_used_s": 3.0, "progress": "", "planned_bytes": 70 * GIB, "measured_bytes": 68 * GIB},
            {"name": "code", "on_demand": False, "state": "starting", "why": None, "waiting": 2, "in_flight": 0,
             "last_used_s": None, "progress": "42 %", "planned_bytes": 40 * GIB, "measured_bytes": None},
            {"name": "embed", "on_demand": True, "state": "stopped", "why": None, "waiting": 0, "in_flight": 0,
             "last_used_s": 5400.0, "progress": "", "planned_bytes": 3 * GIB, "measured_bytes": 3 * GIB},
        ],
    }  # fmt: skip
    serves = model(names, name="chat", cluster="sparks-chat")
    return cluster(2, serves, starts, waits, state="starting", gateway=gateway)


def eight() -> tuple[Document, Document]:
    """Eight Sparks on a switch, in four groups of two."""
    return cluster(8, model([f"spark-{number + 1}" for number in range(8)], groups=4))


def hostile() -> tuple[Document, Document]:
    """Texts of nodes, records and engines are markup, and long."""
    document, history = json.loads(json.dumps(lost()).replace("spark-2", HOSTILE.replace('"', "'")))
    (broken,) = document["models"]
    broken |= {"model": HOSTILE, "image": HOSTILE, "endpoint": HOSTILE, "why": HOSTILE, "guards": {HOSTILE: HOSTILE}}
    broken["findings"].append(found(HOSTILE, "error", HOSTILE, HOSTILE, node=HOSTILE, seen=HOSTILE, why=HOSTILE))
    broken["drawing"].append([[HOSTILE, "bad"]])
    document |= {"inventory": HOSTILE}
    return document, history


STATES = {"serving": serving, "lost": lost, "loading": loading, "eight": eight, "hostile": hostile}
