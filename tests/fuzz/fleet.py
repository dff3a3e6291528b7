"""A cluster of two nodes that answer every node program honestly, except for answers that a test corrupts."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sparkcluster import plan as planning
from sparkcluster import topology as topologies
from sparkcluster.cli import main as frame
from sparkcluster.errors import CommandTimeout
from sparkcluster.facts.collect import Collected
from sparkcluster.facts.model import Facts
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.base import Closing, Result
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import View
from sparkcluster.plan.release_record import record
from sparkcluster.release import replacement
from sparkcluster.release.rollback_target import newly_recorded
from sparkcluster.spec.load import load
from tests.unit.conftest import IMAGE, describe

from . import spoil

INVENTORY = """
cluster: atlas
nodes:
  - {name: alpha, host: 192.168.86.11}
  - {name: beta, host: 192.168.86.12}
playbook: small.yaml
"""
PLAYBOOK = """
name: small
model: {id: Qwen/Qwen3-8B}
image: vllm/vllm-openai:v0.18.0
verify: {expect: "204", pause_s: 0, timeout_s: 60}
"""
REVISION = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "intermediate_size": 12288,
    "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip
WEIGHTS = {
    "path": f"/home/nvidia/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/{REVISION}",
    "revision": REVISION,
    "config": CONFIG,
    "files": [{"name": "config.json", "size_bytes": 900}, {"name": "model.safetensors", "size_bytes": 16_000_000_000}],
}
NO_WEIGHTS = {"path": None, "revision": None, "config": None, "files": []}
DONE = {
    "content": "204", "reasoning": "12 * 17", "tool_calls": [], "finish_reason": "stop", "ttft_s": 0.2, "total_s": 1.2,
    "usage": {"completion_tokens": 40, "prompt_tokens": 20}, "status": 200,
}  # fmt: skip
COUNTERS = {"generated": 100.0, "prompted": 40.0, "running": 1.0, "waiting": 0.0, "kv_cache": 0.1}
CHANGED = {
    "unit": None,
    "command": ["python3", "guard.py"],
    "free_before_bytes": 1,
    "free_bytes": 2,
    "freed": {"/models/old": 9},
}
MODELS = [
    {"repository": "Qwen/Qwen3-8B", "path": WEIGHTS["path"], "bytes": 16_000_000_900, "used_by": ["atlas"]},
    {"path": "/models/old", "bytes": 9, "staged_bytes": 9, "clusters": ["atlas"]},
]
LOG = ["(EngineCore) INFO Loading weights took 12.3 seconds", "INFO:     Application startup complete."]


# Pauses before retries.
PAUSES = {
    "release.serving.RETRY_S": 0.0,
    "release.rollout.DYING_S": 0.0,
    "release.group.INTERVAL_S": -2,
    "release.readiness.LAST_LINES_S": 0.0,
}
# How long a node may do nothing: short, so that a case ends soon; any outcome of the limit is right.
LIMITS = {
    "staging.job._ANSWER_S": 0.3,
    "staging.job._END_S": 0.1,
}
WATCHED_S = 0.5
"""How long a watched node continues to print its last line."""


def alone(patched: pytest.MonkeyPatch, folder: Path) -> None:
    """Prevent the code under test from starting programs, waiting, and reading or writing the user's files."""
    for name, where in {
        "HOME": "home",
        "XDG_STATE_HOME": "state",
        "SPARKCLUSTER_CACHE": "cache",
        "TMPDIR": "tmp",
    }.items():
        (folder / where).mkdir()
        patched.setenv(name, str(folder / where))
    patched.setenv("COLUMNS", "100")

    def no_program(*words: Any, **_: Any) -> None:
        raise FileNotFoundError(2, "no program is started here", str(words[:1]))

    patched.setattr(subprocess, "Popen", no_program)
    patched.setattr("sparkcluster.staging.ray_archive._run", lambda _: "not here")
    patched.setattr("sparkcluster.endpoint.judge._search", lambda pattern, text: pattern in text)
    for name, seconds in {**PAUSES, **LIMITS}.items():
        patched.setattr(f"sparkcluster.{name}", seconds)


class Host(FakeHost):
    """A node; ``answer`` gives the output lines of a program: for its request, then for each input line.

    The node is given up if a worker on it is silent for ``silent_s``.
    """

    def __init__(
        self, name: str, answer: Callable[[str, str, dict[str, Any]], list[bytes]], silent_s: float = math.inf
    ) -> None:
        super().__init__(name)
        self.answer, self.silent_s = answer, silent_s

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30) -> Result:
        del timeout_s
        if not stdin.startswith(b'{"start": '):
            return Result(127, b"", b"not a program of ours")
        boot = json.loads(stdin.split(b"\n", 1)[0])
        return Result(
            0, b"".join(each + b"\n" for each in self.answer(self.name, boot["program"], boot["request"])), b""
        )

    def stream(self, argv: Sequence[str], *, stdin: bytes = b"") -> Any:
        boot = json.loads(stdin.split(b"\n", 1)[0])
        return Stream(self, boot["program"], boot["request"])


class Stream(Closing):
    """Output of a program, in answer to its request and to every input line."""

    def __init__(self, host: Host, program: str, request: dict[str, Any]) -> None:
        self.host, self.program = host, program
        self.waiting = host.answer(host.name, program, request)
        self.closed = False
        self.ordered = program == "worker"  # until it is ordered to end
        self.follows = program == "watch" and request["follow"]

    def lines(self, silence_s: float, **limits: float) -> Iterator[bytes]:
        del silence_s, limits
        last = b""
        while self.waiting:
            last = self.waiting.pop(0)
            yield from last.split(b"\n")
            until = time.monotonic() + self.host.silent_s
            while self.ordered and not self.waiting and not self.closed:
                time.sleep(0.005)
                if time.monotonic() > until:
                    raise CommandTimeout("it printed nothing", node=self.host.name, step=self.program)
        until = time.monotonic() + (WATCHED_S if self.follows else 0)
        while time.monotonic() < until and not self.closed:
            time.sleep(0.02)
            yield last

    def send(self, data: bytes) -> None:
        order = {} if self.program == "upload" else json.loads(data)
        self.ordered = self.ordered and not {"end", "cancel"} & order.keys()
        self.waiting += self.host.answer(self.host.name, f"{self.program} said", order)

    def finish(self) -> Result:
        return Result(0 if self.program == "watch" and not self.follows else 1, b"", b"it has ended")

    def close(self) -> None:
        self.closed = True
        self.waiting.clear()


class Cluster:
    """Two nodes, their honest answers, and the command line that queries them.

    ``states``: ``serving``: a release runs and is recorded; ``empty``: nothing runs; ``bare``: like ``empty``, but beta
    lacks the weights, and both lack the contents of their image; ``half``: like ``empty``, but beta lacks the image;
    ``started``: ranks of the plan run without a recorded release; ``stopped``: a release is recorded, and a switch was
    interrupted after its ranks were stopped.
    """

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch) -> None:
        self.inventory = folder / "atlas.yaml"
        self.inventory.write_text(INVENTORY)
        (folder / "small.yaml").write_text(PLAYBOOK)
        (folder / "other.yaml").write_text(PLAYBOOK.replace("name: small", 'name: other\nenv: {OMP_NUM_THREADS: "8"}'))
        self.spec = load(self.inventory, None)
        self.internal: list[BaseException] = []
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.hostile = self.stdout = ""
        patched.setattr(frame, "_internal", lambda error, argv: self.internal.append(error) or 70)
        self.patched = patched
        facts = {name: self._facts(name) for name in ("alpha", "beta")}
        empty = {name: json.loads(Facts.model_validate(each).model_dump_json()) for name, each in facts.items()}
        bare = copy.deepcopy(empty)
        bare["beta"]["weights"] = NO_WEIGHTS
        for each in bare.values():
            each["image"]["inside"] = None
        half = copy.deepcopy(empty)
        half["beta"]["image"] = None
        typed = {name: Facts.model_validate(each) for name, each in empty.items()}
        topology = topologies.build(self.spec, typed)
        self.plan = planning.build(self.spec, typed, topology, release=1)
        replies = {"default": Reply("default", "alpha", ttft_s=0.5, tokens_per_s=20.0)}
        view = View(self.spec, Collected(typed, {}), typed, topology=topology, plan=self.plan)
        groups = newly_recorded(view, replies, {})
        self.record = json.loads(json.dumps(record(
            self.spec, groups, number=1, plan_hash=self.plan.hash, operator="ann@desk", verified_at=1.7e9, version="0",
        )))  # fmt: skip
        started = copy.deepcopy(empty)
        for name, each in started.items():
            each["ranks"] = [
                {"name": rank.name, "state": "running", "labels": dict(rank.labels), "image_id": IMAGE["id"]}
                for rank in self.plan.nodes[name].containers
            ]
        serving = copy.deepcopy(started)
        for each in serving.values():
            each["release"] = {"number": 1, "plan_hash": self.plan.hash, "record": self.record}
            each["lease"] = {"epoch": 3, "held": False, "operator": "ann@desk", "operation": "up", "since": 1.7e9}
            each["enabled"] = {"runs": True, "stopped": False, "waits": "beta: no answer"}
        stopped = copy.deepcopy(serving)
        switch = replacement.document(self.spec, number=2, source=1, groups=["default"], back=None)
        for each in stopped.values():
            each.update(ranks=[], switch=switch)
        self.states = {
            "empty": empty,
            "bare": bare,
            "half": half,
            "started": started,
            "serving": serving,
            "stopped": stopped,
        }

    @staticmethod
    def _facts(name: str) -> dict[str, Any]:
        number = {"alpha": 11, "beta": 12}[name]
        rails = {"enp1s0f0np0": f"192.168.177.{number}/24", "enP2p1s0f0np0": f"192.168.178.{number}/24"}
        return describe(rails, management=f"192.168.86.{number}/24", weights=WEIGHTS, kernel_log=["NVRM: Xid 79"])

    def honest(self, state: str, name: str, program: str, request: dict[str, Any], bad_way: bool) -> list[Any]:
        """The documents with which node ``name`` answers ``request``."""
        if program == "probe":
            facts = self.states[state][name]
            of_release = {key: facts[key] for key in ("image", "layers", "weights", "companions")}
            return [facts | {"also": [of_release for _ in request["also"]]}]
        answers: dict[str, list[Any]] = {
            "image": [{"gpus": 1} if request.get("count") else IMAGE["inside"]],
            "releases": [{"records": [self.record], "images": {"000001": IMAGE["id"]}, "secrets": [1], "switch": None}],
            "lease": [{"epoch": 3}],
            "lease said": [{"granted": request["grant"]}] if "grant" in request else [],
            "agent": [{"results": [CHANGED] * len(request.get("steps", ()))}],
            "models": [{"models": MODELS}],
            "ask": [{"counters": COUNTERS, "context": 4096}, {"reasoning": "12 * 17"}, {"text": "204"}, {"done": DONE}],
            "observe": [self._observed(state, name)],
            "watch": self._watched(request),
            "memory": [{"missing_bytes": 0, "waited_s": 3, "shm": []}],
            "upload": [{"offset": 0}],
            "upload said": [{"done": {"bytes": 10}}],
        }  # fmt: skip
        if program in answers:
            return answers[program]
        return getattr(self, f"_{program.replace(' ', '_')}")(request, bad_way)

    def _observed(self, state: str, name: str) -> dict[str, Any]:
        ranks = [
            {**each, "restarts": 0, "exit_code": None, "gpu": "| NVIDIA GB10 |", "log": LOG, "launcher": {
                key: self.plan.nodes[name].containers[0].launcher.get(key)
                for key in ("group", "node", "rank", "role", "executor", "address", "members", "engine", "ray")
            }} for each in self.states[state][name]["ranks"]
        ]  # fmt: skip
        head = {"counters": [{"at_s": 0.1, **COUNTERS}, {"at_s": 3.1, **COUNTERS}], "health": 200,
                "ray": {"192.168.177.11": True, "192.168.177.12": True}}  # fmt: skip
        return {
            "ranks": ranks, "gpus": [{"at_s": 0.1, "utilization_percent": 3.0, "power_w": 4.5}, {"at_s": 3.1}],
            "traffic": [{"at_s": 0.1, "rdma_bytes": {"rocep1s0f0": 5}, "socket_bytes": {"enp1s0f0np0": 5}, "swapped_pages": 0},
                        {"at_s": 3.1, "rdma_bytes": {"rocep1s0f0": 9}, "socket_bytes": {"enp1s0f0np0": 9}, "swapped_pages": 0}],
            **(head if name == "alpha" else {}),
        }  # fmt: skip

    @staticmethod
    def _watched(request: dict[str, Any]) -> list[Any]:
        names = [rank["name"] for rank in request.get("ranks", ())]
        state = {name: {"state": "running", "exit_code": None, "oom_killed": False, "error": ""} for name in names}
        links = dict.fromkeys(request.get("interfaces", ()), True)
        tick = {"states": state, "links": links, "listening": True}
        return [*({"rank": name, "lines": LOG} for name in names), *[tick] * 4]

    def _reach(self, request: dict[str, Any], _: bool) -> list[Any]:
        ports = {address: 40000 + place for place, address in enumerate(request["addresses"])}
        return [{"udp": ports, "tcp": ports, "fixed": request["fixed"], "failed": {}}]

    def _reach_said(self, request: dict[str, Any], bad_way: bool) -> list[Any]:
        if "heard" in request:
            return [{"udp": [0, 2], "tcp": [["192.168.177.11", 40000, "192.168.177.12", 5000]]}]
        good = {"ok": True, "rtt_ms": 0.2}
        bad = {"ok": False, "seen": "no answer within 1.5 s", "from": 5000} if bad_way else good
        return [{"results": {
            str(each["id"]): {"tcp": {str(port): bad for port in each["tcp"]}, "udp": good, "udp_full": bad, "icmp": good}
            for each in request["try"]
        }}]  # fmt: skip

    def _listing(self, _request: dict[str, Any], _: bool) -> list[Any]:
        blob = {"mtime": 1763690000000000000, "blob": "ab" * 32}
        return [
            {"file": {"name": "model.safetensors", "size": 16_000_000_000, **blob, "sha256": "ab" * 32}},
            {"file": {"name": "config.json", "size": 900, **blob, "blob": "cd" * 20, "sha256": "ef" * 32}},
            {"bytes": 5, "total": 10}, {"done": {"bytes": 10}},
        ]  # fmt: skip

    def _image_files(self, request: dict[str, Any], _: bool) -> list[Any]:
        blobs = {"ab" * 32: 16_000_000_000, "cd" * 32: 900} if request["do"] == "save" else {}
        return [
            {"bytes": 5, "total": 10},
            *({"file": {"name": f"blobs/sha256/{name}", "size": size, "mtime": 0, "sha256": name}} for name, size in blobs.items()),
            {"done": {"image_id": IMAGE["id"]}},
        ]  # fmt: skip

    def _worker(self, request: dict[str, Any], _: bool) -> list[Any]:
        whole = "192.168.177.11" in request["listen"]  # alpha's
        lacks = 0 if whole else 2
        room = {"free": 10**12, "needed": lacks and 16_000_000_900, "path": "/"}
        ports = dict.fromkeys(request["listen"], 40001)
        told = {"ports": ports, "token": request["token"], "cert": request["cert"], "lacks": lacks, "room": room}
        has = {"bytes": 16_000_000_900, "done": {"bytes": 0}} if whole else {"bytes": 0}
        return [{**told, **has}]

    @staticmethod
    def _worker_said(order: dict[str, Any], _: bool) -> list[Any]:
        if "look" in order:
            reached: dict[str, list[str]] = {}
            for each in order["look"]:
                reached.setdefault(each["node"], []).append(each["address"])
            return [{"reached": reached}]
        if order.get("from"):
            done = {"bytes": 16_000_000_900, "seconds": 8.0}
            return [{"bytes": 5, "from": "alpha", "medium": "rail"}, {"bytes": 16_000_000_900, "done": done}]
        return []

    def _measure(self, request: dict[str, Any], _: bool) -> list[Any]:
        gathered = 'NCCL INFO Using network IB\nsparkcluster-all-gather {"bus_gb_s": 20.5, "backend": "nccl"}\n'
        row = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n 1048576 500 96.1 95.2 0.01\n"
        return {
            "receive": [{"port": 40002}, {"done": {}}],
            "send": [{"done": {"latency_ms": 0.03, "bytes": 10**10, "seconds": 2.0}}],
            "run": [*([{"port": 18515}] if "listens" in request else []), {"done": {"output": row, "exit": 0}}],
            "contain": [{"done": {"output": gathered, "exit": 0}}],
        }[request["do"]]  # fmt: skip

    def attack(self, words: Sequence[str], state: str, program: str, seed: int) -> tuple[int, str]:
        """Run the command ``words`` while one node sends a corrupted answer of ``program``; returns exit code and output.

        ``seed`` selects the node, its answer, and the corruption.
        """
        chance = Random(seed)
        hostile, bad_way = chance.choice(("alpha", "beta")), chance.random() < 0.5
        self.hostile = hostile

        def answer(name: str, asked: str, request: dict[str, Any]) -> list[bytes]:
            self.requests.append((name, asked, request))
            documents = self.honest(state, name, asked, request, bad_way)
            lines = [json.dumps(each).encode() for each in documents]
            if name == hostile and asked.partition(" ")[0] == program and lines:
                place = chance.randrange(len(lines))
                lines[place] = spoil.line(chance, documents[place])
                if chance.random() < 0.1:
                    lines = lines[: place + 1] * chance.choice((1, 2))
            return lines

        return self.command(words, answer)

    def command(
        self, words: Sequence[str], answer: Callable[[str, str, dict[str, Any]], list[bytes]]
    ) -> tuple[int, str]:
        """Run the command ``words``, with INVENTORY replaced, on nodes that ``answer``; returns exit code and output."""

        def connect(inventory: Any, *_: Any) -> Fleet:
            silent_s = {self.hostile: WATCHED_S}
            return Fleet({
                node.label: Host(node.label, answer, silent_s.get(node.label, math.inf)) for node in inventory.nodes
            })  # fmt: skip

        for module in ("common", "down"):
            self.patched.setattr(f"sparkcluster.cli.{module}.fleet_of", connect)
        self.internal.clear()
        self.requests.clear()
        out, err = io.StringIO(), io.StringIO()
        argv = [str(self.inventory) if word == "INVENTORY" else word for word in words]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = frame.guarded(argv)
        self.stdout = out.getvalue()
        return code, self.stdout + err.getvalue()
