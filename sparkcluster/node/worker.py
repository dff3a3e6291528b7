"""Copies the files of a job to this node, and serves them to other nodes.

``staging.order`` describes request, input and output. The worker is a separate process, which survives a lost
connection of the operator (``job``). If another operator requests the lease, it pauses within a second, and exits
unless that operator starts the same job within a minute.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import threading
import time
from typing import Any, BinaryIO

from sparkcluster.node import common, file_list, job, receive, sources, tls, wire
from sparkcluster.node.file_list import Listed
from sparkcluster.node.files import Files
from sparkcluster.node.serve import Gate, Server
from sparkcluster.node.tree import Tree
from sparkcluster.node.wire import Failed

Document = dict[str, Any]

_TICK_S = 0.25
_ADOPTED_S = 60.0  # for the next operator to adopt the job
_ALONE_S = 60.0  # without an operator and without work
_LOOK_S, _LOOKS, _LOOK_LIMIT_S = 1.5, 64, 10.0  # seconds per address, addresses at the same time, seconds in total
_OTHER_S = 30.0  # the controller gets no output meanwhile; it waits a minute at most
_PATIENCE_S, _HASHING_S = 60.0, 600.0  # without progress; while the source still hashes files that have arrived


def main(request: Document, stdin: BinaryIO) -> None:
    """Start or adopt the worker; the answer is a ``wire.outcome``."""
    common.emit(wire.outcome(lambda: begin(request, stdin)))
    os._exit(0)  # a thread still reads the input


def begin(request: Document, lines: BinaryIO) -> Document:
    """Start the worker of this job, or adopt a running one, and follow it; return its result."""
    cluster = common.cluster_dir(request["state_dir"], request["cluster"])
    directory = os.path.join(cluster, "staging", hashlib.sha256(request["root"].encode()).hexdigest()[:16])
    lease = {name: request.get(name) for name in ("state_dir", "cluster", "epoch", "kind")}
    listed, sha256 = file_list.read(lines, request["files"])
    asked = [sha256, *(request.get(name) for name in ("listen", "replace", "limit_bytes_s"))]
    seen: Document = {}

    def report(said: Document) -> None:
        if said.get("epoch") != request["epoch"]:
            said = {}  # meant for the previous operator
        new = {name: value for name, value in said.items() if seen.get(name) != value}
        seen.update(new)
        common.emit(new)

    return job.run(
        directory,
        request["cluster"],
        lambda own: Worker(request, listed, own).run(),
        lambda: common.check_not_taken(lease),
        what=json.dumps(asked),
        order={"lease": lease, "look": None},
        lines=lines,
        report=report,
    )


class Worker:
    """The process that receives and serves the files in ``listed`` for ``request``; ``own`` is its job.

    Attributes:
        said: its report to the operator; has ``done`` when all files are here.
        led: when the lease was last found not to be taken by another operator (``time.monotonic``).
        active: when it last had work, or an operator.
        rested: when there was last nothing to wait for.
    """

    def __init__(self, request: Document, listed: Listed, own: job.Job) -> None:
        self.request = request
        self.job = own
        self.gate = Gate(request.get("limit_bytes_s"))
        self.before: Document = {}
        self.error: Exception | None = None
        self.news, self.arrived = threading.Event(), threading.Event()
        self.led = self.active = self.rested = time.monotonic()
        tree = Tree(os.path.realpath(common.expand(request["root"])))
        tree.lock(_OTHER_S, self._cancelled)
        self.files = Files(request, listed, tree, self.gate.wait)
        self.receiver = receive.Receiver(self.files, self.gate, self.arrived)
        self.servers = self._listen()
        ports = {server.server_address[0]: server.server_address[1] for server in self.servers}
        self.said: Document = {"ports": ports, "token": request["token"], "cert": request.get("cert")}
        self.said.update(self.files.needed())

    def run(self) -> Document:
        """Work until the operator ends it, or there is nothing left to do or to serve."""
        self._lease()
        threading.Thread(target=self._settle, daemon=True).start()
        self.receiver.start()
        while True:
            order = self.job.order()
            self._obey(order)
            self._raise()
            self._say()
            self._cancelled()
            if order.get("end") or self._is_over():
                return dict(self.said.get("done", {}))
            self._pause(order)
            self._lease()

    def _pause(self, order: Document) -> None:
        """Wait for the next round, at most until another ``order`` or news."""
        until = time.monotonic() + _TICK_S
        while time.monotonic() < until and self.job.order() is order and not self.news.wait(job.GLANCE_S):
            continue
        self.news.clear()

    def _listen(self) -> list[Server]:
        """Listen on each address; skip addresses that the node no longer has."""
        servers, token, cert = [], self.request["token"], self.request.get("cert")
        context = tls.listener(cert, self.request["private_key"]) if cert else None
        for address, encrypted in self.request["listen"].items():
            with contextlib.suppress(OSError):
                servers.append(Server(self.files, self.gate, address, token, context if encrypted else None))
        return servers

    # lease and end

    def _lease(self) -> None:
        """Pause while another operator has the lease; Refused if that operator does not adopt this job in time."""
        try:
            common.check_not_taken(self.job.order()["lease"])
        except common.Refused:
            self.gate.close()
            if time.monotonic() - self.led > _ADOPTED_S:
                raise
        else:
            self.gate.open.set()
            self.led = time.monotonic()

    def _cancelled(self) -> None:
        if self.job.order().get("cancel"):
            raise Failed("cancelled", "cancelled")

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
        """Whether, for a minute, no operator had the lease, and there was nothing to do or to serve."""
        now = time.monotonic()
        waits = "done" not in self.said and self.receiver.sources.given
        served = any(server.known for server in self.servers)
        if waits or served or common.is_locked(common.lease_files(self.before["lease"])[0]):
            self.active = now
        return now - self.active > _ALONE_S

    # orders

    def _obey(self, order: Document) -> None:
        """Carry out what is new in the order; for another operator, everything is new."""
        if order["lease"] != self.before.get("lease"):
            self.before = {}
            self.said.pop("reached", None)
        for name, act in (("sha256", self.files.learn), ("from", self.receiver.sources.set), ("look", self._look)):
            if order.get(name) is not None and order[name] != self.before.get(name):
                act(order[name])
        self.before = order

    def _look(self, ways: list[Document]) -> None:
        """Connect to all addresses at the same time, and report which proved their token."""
        reached = dict[str, list[str]]({each["node"]: [] for each in ways})

        def dial(each: Document) -> None:
            with contextlib.suppress(Failed):
                receive.Line(sources.way(each["node"], each), _LOOK_S).close()
                reached[each["node"]].append(each["address"])

        pool = concurrent.futures.ThreadPoolExecutor(_LOOKS)
        concurrent.futures.wait([pool.submit(dial, each) for each in ways], _LOOK_LIMIT_S)
        pool.shutdown(wait=False, cancel_futures=True)
        self.said["reached"] = {node: [*addresses] for node, addresses in reached.items()}

    # received files

    def _settle(self) -> None:
        """Publish received files, in a thread since it waits for the disk. It alone rejects files and reports done."""
        try:
            while True:
                last = "done" not in self.said and not self.files.lacking() and not self.files.waits()
                wrong = self.files.rename_correct(last=last)
                for each in wrong:
                    self.receiver.record_wrong(*each)
                if last and not wrong:
                    seconds = time.monotonic() - self.receiver.first if self.receiver.first else 0.0
                    self.said["done"] = {"bytes": self.receiver.received, "seconds": round(seconds, 3)}
                    self.news.set()
                self.arrived.wait(_TICK_S)
                self.arrived.clear()
        except Exception as error:
            self.error = error

    def _say(self) -> None:
        self.said.update(
            bytes=self.files.have(),
            epoch=self.before["lease"]["epoch"],
            left=self.receiver.sources.left(over="done" in self.said),
            wrong=self.receiver.wrong,
            kept=self.files.kept(),
            medium=self.receiver.sources.medium,
            sha256={str(number): sha256 for number, sha256 in self.files.hashes().items()},
            **{"from": self.receiver.sources.current},
        )
        self.job.say(self.said)
