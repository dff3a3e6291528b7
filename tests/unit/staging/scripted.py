"""Nodes with scripted workers: the controller of a copy without processes."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator
from typing import Any, Self

from sparkcluster.errors import HostLost
from sparkcluster.hosts.base import Result
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.staging.copy import Step
from sparkcluster.staging.copy_request import Files, Settings
from sparkcluster.staging.job import Job
from sparkcluster.topology.build import build
from tests.unit.staging.conftest import RecordingReport

GB = 10**9
SIZE = 2 * GB


def file(path: str, sha256: str | None = "ab" * 32, size: int = SIZE) -> dict[str, Any]:
    return {"path": path, "size": size, "mtime": 0, "sha256": sha256, "links": []}


class ScriptedNode(FakeHost):
    """A node with ``has`` of ``total`` bytes, whose worker reaches all nodes and follows ``script``.

    Attributes:
        script: called with this node when it gets its sources; by default everything arrives immediately.
        began: first message of the worker, instead of the usual one.
        reaches: whether it reaches an address.
        orders: received orders.
    """

    def __init__(self, name: str, has: int, total: int) -> None:
        super().__init__(name)
        self.has, self.total = has, total
        self.script: Callable[[ScriptedNode], None] = ScriptedNode.complete
        self.began: dict[str, Any] = {}
        self.reaches: Callable[[str], bool] = lambda _: True
        self.orders: list[dict[str, Any]] = []
        self._said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def ordered(self, name: str) -> list[Any]:
        """All orders of this name."""
        return [order[name] for order in self.orders if name in order]

    def say(self, **document: Any) -> None:
        self._said.put(json.dumps(document).encode())

    def complete(self) -> None:
        if self.has < self.total:
            sources = self.ordered("from")[-1]
            self.say(**{"from": sources[0]["node"], "medium": sources[0]["medium"], "bytes": self.total // 2})
            self.say(bytes=self.total, done={"bytes": self.total - self.has, "seconds": 2.0})

    def lose(self) -> None:
        """Break its connection."""
        self._said.put(b"lost")

    # as a host, and as the stream of its worker

    def stream(self, argv: Any, *, stdin: bytes = b"") -> Any:
        boot = json.loads(stdin.split(b"\n", 1)[0])
        assert boot["program"] == "worker"
        request, lacks = boot["request"], self.total - self.has
        usual = {
            "ports": dict.fromkeys(request["listen"], 4001), "token": request["token"],
            "cert": request["cert"], "lacks": int(lacks > 0), "bytes": self.has,
            "room": {"free": 100 * GB, "needed": lacks, "path": "/models"}, **({} if lacks else {"done": {"bytes": 0}}),
        }  # fmt: skip
        self.say(**{**usual, **self.began})
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def lines(self, silence_s: float) -> Iterator[bytes]:
        del silence_s
        while (line := self._said.get()) is not None:
            if line == b"lost":
                raise HostLost(f"connection to {self.name} broke", node=self.name)
            yield line

    def send(self, data: bytes) -> None:
        order = json.loads(data)
        self.orders.append(order)
        if "look" in order:
            reached: dict[str, list[str]] = {}
            for way in order["look"]:
                reached.setdefault(way["node"], []).extend([way["address"]] if self.reaches(way["address"]) else [])
            self.say(reached=reached)
        if "from" in order:
            self.script(self)
        if order.keys() & {"end", "cancel"}:
            self._said.put(None)

    def finish(self) -> Result:
        return Result(0, b"", b"it has ended")

    def close(self) -> None: ...


class ScriptedCopy:
    """A copy to nodes with one rail (10.1.0.*) and a wired network (192.168.86.*); the first has everything."""

    def __init__(self, spark: Any, cluster: Any, names: str, files: list[dict[str, Any]], offline: str) -> None:
        total = sum(each["size"] for each in files)
        self.nodes = {name: ScriptedNode(name, total if name == names[0] else 0, total) for name in names}
        self.facts = {
            name: spark(
                {} if name in offline else {"enp1s0f0np0": f"10.1.0.{place}/24"}, management=f"192.168.86.{place}/24"
            )
            for place, name in enumerate(names, 11)
        }
        self.spec = cluster({name: name for name in names}, groups=[{"name": name, "nodes": [name]} for name in names])
        self.files, self.shown, self.stopped = files, RecordingReport(), False
        self.job: Job

    def run(self, **settings: Any) -> Any:
        requests = {name: {"root": "/models/m"} for name in self.nodes}
        step = Step("copy weights", lambda _: {"state_dir": "/s", "cluster": "atlas"}, lambda: self.stopped)
        self.job = Job(
            step, Fleet(self.nodes), self.facts, build(self.spec, self.facts), Files("weights", requests, self.files),
            report=self.shown, settings=Settings(**settings),
        )  # fmt: skip
        return self.job.run()

    def sources(self, name: str) -> list[tuple[str, str]]:
        """The ordered sources of a node."""
        (order,) = self.nodes[name].ordered("from")
        return [(each["node"], each["medium"]) for each in order]
