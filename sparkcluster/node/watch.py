"""Watches the ranks of one node: a sign of life every tick, states, and new log lines.

Answers in JSON lines until its input closes, which means that the controller has stopped reading::

    {"tick": 3, "states": {NAME: {"state", "exit_code", "oom_killed", "error"}}, "listening": true,
     "links": {"enp1s0f0np0": true}}
    {"rank": NAME, "lines": ["…"]}

A state is ``created``, ``running``, ``restarting``, ``paused``, ``removing``, ``exited``, ``dead``, ``gone``,
``unknown`` (none of these; only of containers) or ``unreadable`` (with ``error``). A rank's last lines come before the
tick that says it is gone. Python 3.8, standard library.
"""

from __future__ import annotations

import calendar
import contextlib
import fcntl
import itertools
import os
import queue
import socket
import struct
import threading
import time
from functools import partial
from typing import Any, BinaryIO, Iterator

from sparkcluster.node import common, ranks
from sparkcluster.node.machine import DOCKER_LIMIT_S, Machine, Unreadable

BATCH_CHARACTERS = 1 << 16  # in JSON up to six times as many bytes, and the controller takes 1 MB in one line
_SIOCGIFFLAGS, _IFF_RUNNING = 0x8913, 0x40  # linux/sockios.h, linux/if.h


class Watch:
    """Log readers and the state poll of one node, each in a thread, joined in one queue."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.machine = Machine(docker_limit_s=DOCKER_LIMIT_S)
        self.ranks: list[dict[str, Any]] = request["ranks"]
        self.tail = int(request.get("tail", 100))
        self.follow = bool(request.get("follow", True))
        self.interval_s = float(request.get("interval_s") or 2)
        self.port = request.get("engine_port")
        self.host = common.connectable(request.get("engine_host"))
        self.interfaces: list[str] = request.get("interfaces") or []
        self.lines: queue.Queue[tuple[str, str]] = queue.Queue(20000)
        self.states: dict[str, dict[str, Any]] = {}
        self.listening: bool | None = None
        self.polled = threading.Event()
        self.hurry = threading.Event()
        self.drained = {rank["name"]: threading.Event() for rank in self.ranks}

    def put(self, name: str, buffer: bytes) -> bytes:
        """Queue the complete lines of ``buffer``; returns the remainder."""
        lines, remainder = ranks.split(buffer)
        for line in lines:
            self.lines.put((name, line))
        return remainder

    def follow_container(self, name: str) -> None:
        """Read a container's log, and continue where it was created or started again."""
        read, seen = False, None
        while True:
            with contextlib.suppress(Unreadable, ValueError):  # the state poll reports an engine that does not answer
                since = ranks.container(self.machine, name)["started_at"]
                if not read or since not in (None, seen):
                    self.read_container(name, since if read else None)
                    read, seen = True, since
                    self.drained[name].set()
                    self.hurry.set()
            if not self.follow:
                self.drained[name].set()
                return
            time.sleep(min(0.5, self.interval_s))

    def read_container(self, name: str, since: str | None) -> None:
        """Queue a container's log up to its end; ``since`` is its start if what it logged before was read."""
        self.drained[name].clear()
        query = "follow=%d" % self.follow
        if since:
            query += "&tail=all&since=%d" % calendar.timegm(time.strptime(since[:19], "%Y-%m-%dT%H:%M:%S"))
        else:
            query += "&tail=%d" % self.tail
        # no limit: a serving engine may be quiet for hours, and the ticks are the sign of life
        for line in ranks.log_lines(self.machine, name, query, None):
            self.lines.put((name, line))

    def follow_file(self, name: str, path: str) -> None:
        """Read a log file as it grows; one that was replaced or cut is read from its start."""
        position, inode, remainder = 0, None, b""
        while True:
            data, first = b"", inode is None
            with contextlib.suppress(OSError), open(path, "rb") as file:
                status = os.fstat(file.fileno())
                if first:
                    position = max(0, status.st_size - 200 * self.tail)
                elif status.st_ino != inode or status.st_size < position:
                    position = 0
                inode = status.st_ino
                file.seek(position)
                data = file.read(-1 if first else 1 << 20)
                position += len(data)
            if first:
                data = b"\n".join(ranks.LINE_END.split(data)[-self.tail - 1 :]) if self.tail else b""
            remainder = self.put(name, remainder + data)
            over = self.states.get(name, {}).get("state") in ranks.OVER
            if not over:
                self.drained[name].clear()
            if data:
                continue
            if over or not self.follow:
                remainder = self.put(name, remainder + b"\n")
                self.drained[name].set()
            if not self.follow:
                return
            time.sleep(0.2)

    def state(self, rank: dict[str, Any]) -> dict[str, Any]:
        """State of a rank in the controller's format."""
        try:
            if rank.get("runtime") == "process":
                found = ranks.process(self.machine, common.expand(rank["rank_dir"]))
            else:
                found = ranks.container(self.machine, rank["name"])
        except Unreadable as error:
            return {"state": "unreadable", "error": str(error)}
        damaged = rank.get("runtime") == "process" and found["state"] == "unknown"
        state = {"state": "gone" if damaged else found["state"]}
        if state["state"] not in ("created", "running", "gone", "unknown"):
            state.update(exit_code=found["exit_code"], oom_killed=found.get("oom_killed", False))
        if found.get("error"):
            state["error"] = found["error"]
        return state

    def poll(self) -> None:
        """Update the states in a separate thread, so that a hanging Docker engine does not stop the ticks."""
        while True:
            for rank in self.ranks:
                self.states[rank["name"]] = self.state(rank)
            if self.port:
                self.listening = accepts(self.host, int(self.port))
            self.polled.set()
            self.hurry.wait(self.interval_s / 2)
            self.hurry.clear()

    def start(self) -> None:
        """Start the threads; they end with the program."""
        threading.Thread(target=self.poll, daemon=True).start()
        for rank in self.ranks:
            if rank.get("runtime") == "process":
                job = partial(self.follow_file, rank["name"], os.path.join(common.expand(rank["rank_dir"]), "log"))
            else:
                job = partial(self.follow_container, rank["name"])
            threading.Thread(target=job, daemon=True).start()

    def batch(self, wait_s: float) -> list[dict[str, Any]]:
        """Log lines that arrive within ``wait_s``, as one event per rank."""
        try:
            name, line = self.lines.get(timeout=wait_s)
        except queue.Empty:
            return []
        time.sleep(0.02)
        batches: dict[str, list[str]] = {name: [line]}
        size = len(line)
        while size < BATCH_CHARACTERS and not self.lines.empty():
            name, line = self.lines.get()
            batches.setdefault(name, []).append(line)
            size += len(line) + 1
        return [{"rank": name, "lines": lines} for name, lines in batches.items()]

    def until_tick(self, reported: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Events up to the next tick, which comes early where a rank's state changed."""
        until = time.monotonic() + self.interval_s * 0.75
        while time.monotonic() < until:
            yield from self.batch(0.1)
            for name, state in list(self.states.items()):
                if state != reported.get(name):
                    until = 0.0
                    if state["state"] in ranks.OVER:
                        self.drained[name].wait(0.5)
        while not self.lines.empty():
            yield from self.batch(0)

    def report(self) -> None:
        """Write events, tick by tick."""
        reported: dict[str, dict[str, Any]] = {}
        self.polled.wait(self.interval_s)
        if not self.follow:
            for drained in self.drained.values():
                drained.wait(10)
        for tick in itertools.count():
            for event in self.until_tick(reported):
                common.emit(event)
            reported = dict(sorted(self.states.items()))
            sign: dict[str, Any] = {"tick": tick, "states": reported}
            if self.interfaces:
                sign["links"] = {name: carrier(name) for name in self.interfaces}
            if self.port:
                sign["listening"] = self.listening
            common.emit(sign)
            if not self.follow:
                return


def carrier(interface: str) -> bool:
    """Whether a cable with a live far end is plugged in; False for an interface that is down or gone.

    Asked of the kernel and not of /sys, which is not mounted everywhere: an unreadable file is not a cable that is out.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack("16s24x", interface.encode()[:15]))
        except OSError:
            return False
    return bool(struct.unpack_from("H", answer, 16)[0] & _IFF_RUNNING)


def accepts(host: str, port: int) -> bool:
    """Whether a program accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=0.5):
            return True
    except OSError:
        return False


def main(request: dict[str, Any], lines: BinaryIO) -> None:
    """Watch until the input closes, or without ``follow`` report the logs' last lines and the states once."""
    watch = Watch(request)
    if watch.follow:
        common.end_with(lines, lambda _: os._exit(0))
    watch.start()
    try:
        watch.report()
    except OSError:
        pass  # the reader has closed its end
    # not by returning, which would wait for threads that hold the lock of a buffer
    os._exit(0)
