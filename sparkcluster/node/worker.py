"""Brings the files of a job to this node, and serves them to others.

The request is ``Begin`` of ``staging.order``, its input are ``Order`` lines, its output are ``WorkerLine`` lines. The
worker is a process of its own, which outlives the operator's connection (``job``). Where another operator asks for the
lease it stands still within a second, and ends unless that one begins the same job in a minute.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from sparkcluster.node import common, file_list, job, receive, tls, wire
from sparkcluster.node.files import Files
from sparkcluster.node.serve import Gate, Server
from sparkcluster.node.shared import FILES_LIST
from sparkcluster.node.tree import Tree
from sparkcluster.node.wire import Failed

Request = dict[str, Any]
Document = dict[str, Any]

_TICK_S = 0.25
_ADOPTED_S = 60.0  # in which the next operator takes over what the last one began
_ALONE_S = 60.0  # without operator, and without anything to do
_LOOK_S, _LOOKS = 1.5, 64  # seconds for each address, and how many at once
_OTHER_S = 30.0  # the controller hears nothing meanwhile, for a minute at most
_PATIENCE_S, _HASHING_S = 60.0, 600.0  # without anything new; where everything arrived and its source still reads it


def main(request: Request, stdin: BinaryIO) -> None:
    """Begin; the answer is a ``wire.outcome``."""
    common.emit(wire.outcome(lambda: begin(request, stdin)))
    os._exit(0)  # a thread still reads the input


def begin(request: Request, lines: BinaryIO) -> Document:
    """Start the worker of this job, or adopt the one that runs, and follow it; what it did at its end."""
    directory = os.path.join(common.cluster_dir(request["state_dir"], request["cluster"]), "staging", request["key"])
    lease = {name: request.get(name) for name in ("state_dir", "cluster", "epoch", "kind")}
    seen: Document = {}
    followed = os.path.join(directory, "followed")

    def report(said: Document) -> None:
        with open(followed, "w"):
            os.utime(followed)
        if said.get("epoch") != request["epoch"]:
            said = {}  # to the operator before this one
        new = {name: value for name, value in said.items() if seen.get(name) != value}
        seen.update(new)
        if "whole" in new:
            new["done"] = new.pop("whole")
        common.emit({**new, "bytes": said.get("bytes", 0), "total": said.get("total", 0)})

    def check() -> None:
        common.not_taken(lease)

    def action(own: job.Job) -> Document:
        return Worker(request, own).run()

    asked = [request.get(name) for name in ("files_sha256", "listen", "replace", "limit_bytes_s")]
    what = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
    order = {"lease": lease, "look": None}
    return job.run(directory, request["cluster"], action, check, what=what, order=order, lines=lines, report=report)


def _files(request: Request, directory: str, gate: Callable[[], None]) -> Files:
    """The files of a request, of which the list is in the ``directory`` of the job."""
    tree = Tree(os.path.realpath(common.expand(request["root"])))
    tree.lock(_OTHER_S, gate)
    listed = file_list.read(os.path.join(directory, FILES_LIST), request.get("files_sha256"))
    return Files(request, listed, tree, gate)


class Worker:
    """The process that brings and serves what ``request`` says; ``own`` is its job."""

    def __init__(self, request: Request, own: job.Job) -> None:
        self.request = request
        self.job = own
        self.gate = Gate(request.get("limit_bytes_s"))
        self.servers: list[Server] = []
        self.said: Document = {}
        self.idle: float | None = None
        self.before: Document = {}
        self.error: Exception | None = None
        self.news, self.arrived = threading.Event(), threading.Event()
        self.looked: list[Document] = []
        self.looks_at_lease = threading.get_ident()
        self.taken_at: float | None = None
        self.rested = 0.0

    def run(self) -> Document:
        """Work until the operator says that it is the end, or there is nothing to do and nobody to serve."""
        try:
            return self._run()
        finally:
            self.gate.end()
            for server in self.servers:
                server.forget()

    def _run(self) -> Document:
        self.files = _files(self.request, self.job.directory, self._stand_still)
        self.receiver = receive.Receiver(self.files, self.gate, self.arrived)
        self.servers = self._listen()
        ports = {server.server_address[0]: server.port for server in self.servers}
        self.said.update(ports=ports, token=self.request["token"], cert=self.request.get("cert"))
        self.said.update(self.files.needed())
        threading.Thread(target=self._settle, daemon=True).start()
        self.receiver.start()
        while True:
            self._lease()
            order = self.job.order()
            self._obey(order)
            self._raise()
            self._say()
            self._cancelled(order)
            if order.get("end") or self._is_over():
                return dict(self.said.get("whole") or {"bytes": self.receiver.received})
            self._pause(order)

    def _pause(self, order: Document) -> None:
        """Wait for the next round, but no longer than for another ``order`` or news."""
        until = time.monotonic() + _TICK_S
        while time.monotonic() < until and self.job.order() is order and not self.news.wait(job.GLANCE_S):
            continue
        self.news.clear()

    def _listen(self) -> list[Server]:
        """Listen on each address; one that the node no longer has is left out, unless it is the last."""
        servers, token, cert = [], self.request["token"], self.request.get("cert")
        context = tls.listener(cert, self.request["private_key"]) if cert else None
        for each in self.request["listen"]:
            try:
                encrypted = context if each.get("tls") else None
                servers.append(Server(self.files, self.gate, each["address"], token, encrypted))
            except Failed:
                if each is self.request["listen"][-1] and not servers:
                    raise
        return servers

    # lease and end

    def _lease(self) -> None:
        """Stand still while another operator has the lease; Refused if he does not come to this job in time."""
        now = time.monotonic()
        try:
            common.not_taken(self.job.order()["lease"])
        except common.Refused:
            self.gate.close()
            self.taken_at = self.taken_at or now
            if now - self.taken_at > _ADOPTED_S:
                raise
        else:
            self.gate.open.set()
            self.taken_at = None

    def _stand_still(self) -> None:
        """Before anything is changed. This thread alone looks at the lease: where it waits itself, it goes on looking.

        Raises:
            Failed: it was cancelled, or the job is over.
        """
        while threading.get_ident() == self.looks_at_lease:
            self._lease()
            if self.gate.open.is_set():
                break
            self._cancelled(self.job.order())
            time.sleep(job.GLANCE_S)
        self.gate.wait()

    def _cancelled(self, order: Document) -> None:
        if order.get("cancel"):
            raise Failed("cancelled", "it was cancelled")

    def _raise(self) -> None:
        for error in (self.error, self.receiver.error, *(server.error for server in self.servers)):
            if error is not None:
                raise error
        now, lacking = time.monotonic(), self.files.lacking()
        if not (lacking or self.files.waits()) or not self.receiver.sources.given or not self.gate.open.is_set():
            self.rested = now
        elif now - max(self.files.busy, self.rested) > (_PATIENCE_S if lacking else _HASHING_S):
            rest = " and %d more" % (lacking - 1) if lacking > 1 else ""
            raise Failed("missing", "no node sends %s%s" % (self.files.waiting(), rest))

    def _is_over(self) -> bool:
        """Whether nobody follows, and there is nothing to do and nobody to serve."""
        now = time.monotonic()
        waits = "whole" not in self.said and self.receiver.sources.given
        served = any(server.connections for server in self.servers)
        self.idle = None if waits or served else self.idle or now
        if self.idle is None or now - self.idle < _ALONE_S:
            return False
        with contextlib.suppress(OSError):
            return time.time() - os.stat(os.path.join(self.job.directory, "followed")).st_mtime > _ALONE_S
        return True

    # orders

    def _obey(self, order: Document) -> None:
        """Do what is new in the order; another operator gets everything anew."""
        before = self.before if order["lease"] == self.before.get("lease") else {}
        if not before:
            self.said.pop("reached", None)
        for name, act in (("sha256", self._learn), ("from", self.receiver.sources.set), ("look", self._look)):
            if order.get(name) is not None and order[name] != before.get(name):
                act(order[name])
        self.before = order

    def _learn(self, hashes: dict[str, str]) -> None:
        self.files.learn({int(number): sha256 for number, sha256 in hashes.items()})

    def _look(self, ways: list[Document]) -> None:
        """Dial all of them at once, in threads, and say who proved its token."""
        self.looked, reached = ways, dict[str, list[str]]({each["node"]: [] for each in ways})
        self.said.pop("reached", None)

        def dial(each: Document) -> None:
            with contextlib.suppress(Failed):
                receive.Line(receive.way(each["node"], each), _LOOK_S).close()
                reached[each["node"]].append(each["address"])

        def look() -> None:
            with concurrent.futures.ThreadPoolExecutor(_LOOKS) as pool:
                list(pool.map(dial, ways))
            if self.looked is ways:
                self.said["reached"] = reached
            self.news.set()

        threading.Thread(target=look, daemon=True).start()

    # what it has

    def _settle(self) -> None:
        """Make visible what arrived, in a thread: it waits for the disk. It alone rejects, so the end is its to say."""
        try:
            while not self.gate.over:
                last = "whole" not in self.said and not self.files.lacking() and not self.files.waits()
                wrong = self.files.settle(last=last)
                for each in wrong:
                    self.receiver.is_wrong(*each)
                if last and not wrong:
                    self._whole()
                self.arrived.wait(_TICK_S)
                self.arrived.clear()
        except Exception as error:
            if not self.gate.over:
                self.error = error

    def _whole(self) -> None:
        seconds = max(0.0, time.monotonic() - self.receiver.first) if self.receiver.first else 0.0
        done = {"bytes": self.receiver.received, "seconds": round(seconds, 3), "peak_bytes": peak_bytes()}
        self.said["whole"] = done
        self.news.set()

    def _say(self) -> None:
        self.said.update(
            bytes=self.files.have(),
            total=self.files.total,
            epoch=self.before["lease"]["epoch"],
            left=self.receiver.sources.left(over="whole" in self.said),
            wrong=self.receiver.wrong,
            kept=self.files.kept(),
            medium=self.receiver.sources.medium,
            **{"from": self.receiver.sources.current},
        )
        found = self.files.hashes()
        if found:
            self.said["sha256"] = {str(number): sha256 for number, sha256 in found.items()}
        self.job.say(self.said)


def peak_bytes() -> int:
    """The most memory that this process had at once."""
    with open("/proc/self/status") as status:
        found = re.search(r"^VmHWM:\s+(\d+) kB", status.read(), re.MULTILINE)
    return int(found.group(1)) << 10 if found else 0
