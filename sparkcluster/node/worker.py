"""Brings one artifact to this node, and serves it to others.

The request is ``Begin``, its input are ``Order`` lines, its output are ``Said`` lines of ``staging.order``; ``what`` it
moves is a ``Store``. It is a process of its own, which outlives the operator's connection (``job``). Where another
operator asks for the lease it stands still within a second, and ends unless that one begins the same job in a minute.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from sparkcluster.node import common, file_list, file_store, image_store, job, receive
from sparkcluster.node.growing_file import Store
from sparkcluster.node.serve import Gate, Server
from sparkcluster.node.tls import Identity
from sparkcluster.node.tree import Tree
from sparkcluster.node.wire import Failed

Request = dict[str, Any]
Document = dict[str, Any]

FILES_NAME = "files.jsonl"
_TICK_S = 0.25
_ADOPTED_S = 60.0  # in which the next operator takes over what the last one began
_ALONE_S = 60.0  # without operator, and without anything to do
_LOOK_S = 1.5
_OTHER_S = 30.0  # the controller hears nothing meanwhile, for a minute at most
_READING = 10  # times the patience, where everything arrived and the source still reads its files


def files(request: Request, directory: str, gate: Callable[[], None]) -> Store:
    """The weights of a request, with the list of files in the ``directory`` of the job."""
    tree = Tree(os.path.realpath(common.expand(request["root"])))
    limit = time.monotonic() + _OTHER_S
    while not tree.lock():
        if time.monotonic() > limit:
            raise Failed("other", "another copy to %s is in progress" % tree.root)
        gate()
        time.sleep(0.1)
    listed = file_list.Listed(os.path.join(directory, FILES_NAME), request.get("files_sha256"))
    return file_store.Files(request, listed, tree, gate)


def image(request: Request, _directory: str, gate: Callable[[], None]) -> Store:
    """The image of a request."""
    return image_store.Image(request, gate)


# By ``what`` of the request: from it, the directory of the job, and what is called before anything is changed.
STORES: dict[str, Callable[[Request, str, Callable[[], None]], Store]] = {"files": files, "image": image}


def begin(request: Request, lines: BinaryIO) -> Document:
    """Start the worker of this job, or adopt the one that runs, and follow it; what it did at its end."""
    directory = os.path.join(common.cluster_dir(request["state_dir"], request["cluster"]), "staging", request["key"])
    lease = {name: request.get(name) for name in ("state_dir", "cluster", "epoch", "kind")}
    seen: Document = {}
    followed = os.path.join(directory, "followed")

    def report(said: Document) -> None:
        with open(followed, "w"):
            os.utime(followed)
        new = {name: value for name, value in said.items() if seen.get(name) != value}
        seen.update(new)
        if "whole" in new:
            new["done"] = new.pop("whole")
        common.emit({**new, "bytes": said.get("bytes", 0), "total": said.get("total", 0)})

    def check() -> None:
        common.not_taken(lease)

    def action(own: job.Job) -> Document:
        return Worker(request, own).run()

    what, order = request.get("files_sha256"), {"lease": lease}
    return job.run(directory, request["cluster"], action, check, what=what, order=order, lines=lines, report=report)


class Worker:
    """The process that brings and serves what ``request`` says; ``own`` is its job."""

    def __init__(self, request: Request, own: job.Job) -> None:
        self.request = request
        self.job = own
        self.gate = Gate(request.get("limit_bytes_s"))
        private, cert = request.get("private_key"), request.get("cert")
        self.identity = Identity(cert, private) if cert and private else None
        self.said: Document = {}
        self.idle: float | None = None
        self.before: Document = {}
        self.error: Exception | None = None
        self.busy = time.monotonic()
        self.news = threading.Event()
        self.looks_at_lease = threading.get_ident()
        self.taken_at: float | None = None

    def run(self) -> Document:
        """Work until the operator says that it is the end, or there is nothing to do and nobody to serve."""
        try:
            return self._run()
        finally:
            self.gate.end()

    def _run(self) -> Document:
        self.store = STORES[self.request["what"]](self.request, self.job.directory, self._stand_still)
        self.receiver = receive.Receiver(self.store, self.gate, self.identity, self.request.get("node", ""))
        self.server = Server(self.store, self.gate, self.identity)
        self._obey(self.job.order())
        for listen in self.request["listen"]:
            self._listen(listen)
        self.said.update(ports=self.server.ports, token=self.request["token"], cert=self.request.get("cert"))
        self.said.update(self.store.needed())
        threading.Thread(target=self._settle, daemon=True).start()
        self.receiver.start()
        while True:
            self._lease()
            order = self.job.order()
            self._obey(order)
            self._raise()
            # A thread that stands still in the middle of making files visible lets nobody else do it.
            arrived = not self.receiver.lacking() and not self.store.waits()
            if arrived and "whole" not in self.said and self.gate.open.is_set():
                self._finish()
            self._say()
            self._cancelled(order)
            if order.get("end") or self._is_over():
                return dict(self.said.get("whole") or {"bytes": self.receiver.received})
            self._pause(order)

    def _pause(self, order: Document) -> None:
        """Wait for the next round, but no longer than for another ``order``, news, or the last file."""
        until, lacking = time.monotonic() + _TICK_S, self.receiver.lacking()
        while time.monotonic() < until and self.job.order() is order and bool(self.receiver.lacking()) == bool(lacking):
            if self.news.wait(job.GLANCE_S):
                break
        self.news.clear()

    def _listen(self, listen: Document) -> None:
        """Listen on an address; one that the node no longer has is left out, unless it is the last."""
        try:
            self.server.listen(listen["address"], self.request["token"], tls=listen.get("tls", False))
        except Failed:
            if listen is self.request["listen"][-1] and not self.server.ports:
                raise

    # lease and end

    def _lease(self) -> None:
        """Stand still while another operator has the lease; Refused if he does not come to this job in time."""
        now = time.monotonic()
        try:
            common.not_taken(self.job.order()["lease"])
        except common.Refused:
            self.gate.open.clear()
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
        for error in (self.error, self.receiver.error, self.server.error):
            if error is not None:
                raise error
        now = time.monotonic()
        waits = self.receiver.lacking() or self.store.waits()
        if not waits or not self.receiver.sources.order or not self.gate.open.is_set():
            self.busy = now
        elif now - max(self.busy, self.receiver.last, self.store.busy) > self.store.patience_s * (
            1 if self.receiver.lacking() else _READING
        ):
            more = self.receiver.lacking() - 1
            rest = " and %d more" % more if more > 0 else ""
            raise Failed("missing", "no node sends %s%s" % (self.receiver.waiting(), rest))

    def _is_over(self) -> bool:
        """Whether nobody follows, and there is nothing to do and nobody to serve."""
        now = time.monotonic()
        waits = "whole" not in self.said and self.receiver.sources.order
        self.idle = None if waits or self.server.connections else self.idle or now
        if self.idle is None or now - self.idle < _ALONE_S:
            return False
        with contextlib.suppress(OSError):
            return time.time() - os.stat(os.path.join(self.job.directory, "followed")).st_mtime > _ALONE_S
        return True

    # orders

    def _obey(self, order: Document) -> None:
        """Do what is new in the order."""
        if self.identity and order.get("certs") is not None:
            self.identity.certs = order["certs"]
        for name, act in (("sha256", self._learn), ("to", self.store.expect), ("from", self._pull)):
            if name in order and order[name] != self.before.get(name):
                act(order[name])
        if "look" in order and any(order[name] != self.before.get(name) for name in ("look", "round") if name in order):
            looks = order["look"], order.get("round", 0)
            threading.Thread(target=self._look, args=looks, daemon=True).start()
        self.before = order

    def _learn(self, hashes: dict[str, str]) -> None:
        self.store.learn({int(number): sha256 for number, sha256 in hashes.items()})

    def _pull(self, sources: list[Document]) -> None:
        self.receiver.sources.set(sources)

    def _look(self, ways: list[Document], number: int) -> None:
        """Dial all of them at once, and say who proved its token."""
        reached: dict[str, list[str]] = {each["node"]: [] for each in ways}

        def knock(each: Document) -> None:
            with contextlib.suppress(Failed):
                receive.dial(
                    receive.way(each["node"], each), self.identity, _LOOK_S, self.request.get("node", "")
                ).close()
                reached[each["node"]].append(each["address"])

        threads = [threading.Thread(target=knock, args=(each,), daemon=True) for each in ways]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.said.update(reached=reached, round=number)
        self.news.set()

    # what it has

    def _settle(self) -> None:
        """Rename what arrived, in a thread: it waits for the disk."""
        try:
            while not self.gate.over:
                for number, sha256 in self.store.settle():
                    self.receiver.again(number, sha256)
                time.sleep(_TICK_S)
        except Exception as error:
            if not self.gate.over:
                self.error = error

    def _finish(self) -> None:
        """Everything arrived."""
        wrong = self.store.settle(last=True)
        for number, sha256 in wrong:
            self.receiver.again(number, sha256)
        if wrong:
            return
        seconds = max(0.0, time.monotonic() - self.receiver.first) if self.receiver.first else 0.0
        self.said["whole"] = {
            "bytes": self.receiver.received,
            "seconds": round(seconds, 3),
            "peak_bytes": peak_bytes(),
            **self.store.found(),
        }

    def _say(self) -> None:
        self.said.update(
            bytes=self.store.have(),
            total=self.store.total,
            served=dict(self.server.served),
            left=self.receiver.sources.left(over="whole" in self.said),
            wrong=self.receiver.wrong,
            kept=self.store.kept(),
            **{"from": self.receiver.sources.current},
        )
        found = self.store.hashes()
        if found:
            self.said["sha256"] = {str(number): sha256 for number, sha256 in found.items()}
        self.job.say(self.said)


def peak_bytes() -> int:
    """The most memory that this process had at once."""
    with open("/proc/self/status") as status:
        found = re.search(r"^VmHWM:\s+(\d+) kB", status.read(), re.MULTILINE)
    return int(found.group(1)) << 10 if found else 0
