"""Watches the ranks of one node: a sign of life every tick, states, and new log lines.

Answers in JSON lines until its input closes, which means that the controller has stopped reading, or with
``"follow": false`` until the logs were read to their end::

    {"tick": 3, "states": {NAME: {"state", "exit_code", "oom_killed", "error"}}, "listening": true,
     "links": {"enp1s0f0np0": true}}
    {"rank": NAME, "lines": ["…"], "at": "where the log goes on after them"}

With ``"times": true`` the lines of a container have ``"times"``, when each was logged, in seconds since 1970; with
``"since"``, likewise, those before it are left out. With ``"from": {NAME: at}`` a log goes on there: a controller that
lost its connection misses no line and reads none twice. A state is ``created``, ``running``, ``restarting``,
``paused``, ``removing``, ``exited``, ``dead``, ``gone``, ``unknown`` (none of these; only of containers) or
``unreadable`` (with ``error``). A rank's last lines come before the tick that says it is gone.
"""

from __future__ import annotations

import calendar
import contextlib
import fcntl
import itertools
import os
import queue
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO

from sparkcluster.node import common, engine_metrics, ranks
from sparkcluster.node.machine import DOCKER_LIMIT_S, Machine, Unreadable
from sparkcluster.node.shared import BATCH_LINES

BATCH_CHARACTERS = 1 << 16  # in JSON up to six times as many bytes, and the controller takes 1 MB in one line
# what the Docker engine writes before each piece of a log with timestamps=1
_STAMP = re.compile(rb"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9})Z ")
_STAMP_OF_LINE = re.compile(r"^\d{4}-\d\d-\d\dT")
_SIOCGIFFLAGS, _IFF_RUNNING = 0x8913, 0x40  # linux/sockios.h, linux/if.h


class Watch:
    """Log readers and the state poll of one node, each in a thread, joined in one queue."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.machine = Machine(docker_limit_s=DOCKER_LIMIT_S)
        self.request = request
        self.ranks: list[dict[str, Any]] = request["ranks"]
        self.tail = int(request.get("tail", 100))
        self.follow = bool(request.get("follow", True))
        self.interval_s = float(request.get("interval_s") or 2)
        self.start_at: dict[str, str] = dict(request.get("from") or {})
        # name of the rank, a line, and where its log goes on after it
        self.lines: queue.Queue[tuple[str, str, str]] = queue.Queue(20000)
        self.states: dict[str, dict[str, Any]] = {}
        self.listening: bool | None = None
        self.polled = threading.Event()
        self.hurry = threading.Event()
        self.drained = {rank["name"]: threading.Event() for rank in self.ranks}

    def follow_container(self, name: str) -> None:
        """Read a container's log, and continue where it was created or started again."""
        read, seen = False, None
        while True:
            with contextlib.suppress(Unreadable, ValueError):  # the state poll reports an engine that does not answer
                started_at = ranks.container(self.machine, name)["started_at"]
                if not read or started_at not in (None, seen):
                    self.read_container(name)
                    read, seen = True, started_at
                    self.drained[name].set()
                    self.hurry.set()
            if not self.follow:
                self.drained[name].set()
                return
            time.sleep(min(0.5, self.interval_s))

    def read_container(self, name: str) -> None:
        """Queue a container's log up to its end, from where it was read before."""
        self.drained[name].clear()
        at = self.start_at.get(name, "")
        query = "timestamps=1&follow=%d" % self.follow
        if at:
            query += "&tail=all&since=" + unix_time(at)
        else:
            query += "&tail=%d" % self.tail
            if self.request.get("since") is not None:
                query += "&since=%d" % self.request["since"]
        remainder, last = b"", at
        # a serving engine may be quiet for hours, and the ticks are the sign of life
        limit_s = None if self.follow else self.machine.docker_limit_s
        for piece in ranks.log_pieces(self.machine, name, query, limit_s):
            stamp = _STAMP.match(piece)
            if stamp:
                piece, last = piece[stamp.end() :], stamp.group(1).decode()
                if at and last <= at:
                    continue
                self.start_at[name] = last
            found, remainder = ranks.split(remainder + piece)
            for line in found:
                self.lines.put((name, line, last))
        for line in ranks.split(remainder + b"\n")[0]:
            self.lines.put((name, line, last))

    def follow_file(self, name: str, path: str) -> None:
        """Read a log file as it grows; one that was replaced or cut is read from its start."""
        position, inode, buffer = 0, None, b""
        while True:
            over, data = self.states.get(name, {}).get("state") in ranks.OVER, b""
            with contextlib.suppress(OSError), open(path, "rb") as file:
                status = os.fstat(file.fileno())
                if inode is None:
                    position = self.begin(name, file, status)
                elif status.st_ino != inode or status.st_size < position:
                    position, buffer = 0, b""
                inode = status.st_ino
                file.seek(position)
                data = file.read(1 << 20)
                position += len(data)
            if not over:
                self.drained[name].clear()
            ended = not data and (over or not self.follow)
            buffer = self.put_file(name, buffer + data + b"\n" * ended, inode, position)
            if ended:
                self.drained[name].set()
            if not data:
                if not self.follow:
                    return
                time.sleep(0.2)

    def begin(self, name: str, file: BinaryIO, status: os.stat_result) -> int:
        """Where to begin to read a log file: after what was read before, else at its last lines."""
        inode, _, at = self.start_at.get(name, "").partition(":")
        if inode == str(status.st_ino) and at.isdigit() and int(at) <= status.st_size:
            return int(at)
        begin = max(0, status.st_size - 200 * self.tail)
        file.seek(begin)
        ends = [0, *(end.end() for end in ranks.LINE_END.finditer(file.read()))]
        return begin + ends[-self.tail - 1 :][0] if self.tail else status.st_size

    def put_file(self, name: str, buffer: bytes, inode: int | None, position: int) -> bytes:
        """Queue the complete lines of ``buffer``, which a log file has before ``position``; returns the remainder."""
        sent, begin = 0, position - len(buffer)
        for end in [*(found.end() for found in ranks.LINE_END.finditer(buffer)), None]:
            lines, remainder = ranks.split(buffer[sent:end])
            sent = end or sent
            for line in lines:
                self.lines.put((name, line, "%s:%d" % (inode, begin + (end or len(buffer)))))
        return remainder

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
            if self.request.get("engine_port"):
                host = engine_metrics.connectable(self.request.get("engine_host"))
                self.listening = accepts(host, int(self.request["engine_port"]))
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
            name, line, at = self.lines.get(timeout=wait_s)
        except queue.Empty:
            return []
        time.sleep(0.02)
        batches: dict[str, dict[str, Any]] = {}
        size = count = 0
        while True:
            batch = batches.setdefault(name, {"rank": name, "lines": []})
            batch["lines"].append(line)
            batch["at"] = at
            if self.request.get("times") and _STAMP_OF_LINE.match(at):
                batch.setdefault("times", []).append(float(unix_time(at)))
            size += len(line) + 1
            count += 1
            if size >= BATCH_CHARACTERS or count >= BATCH_LINES or self.lines.empty():
                return list(batches.values())
            name, line, at = self.lines.get()

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
        """Write events, tick by tick; without ``follow`` until every log was read to its end."""
        reported: dict[str, dict[str, Any]] = {}
        self.polled.wait(self.interval_s)
        for tick in itertools.count():
            over = not self.follow and all(drained.is_set() for drained in self.drained.values())
            for event in self.until_tick(reported):
                common.emit(event)
            reported = dict(sorted(self.states.items()))
            sign: dict[str, Any] = {"tick": tick, "states": reported}
            if self.request.get("interfaces"):
                sign["links"] = {name: carrier(name) for name in self.request["interfaces"]}
            if self.listening is not None:
                sign["listening"] = self.listening
            common.emit(sign)
            if over:
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


def unix_time(stamp: str) -> str:
    """A time as the Docker engine writes it in seconds since 1970, with its fraction."""
    seconds, _, fraction = stamp.rstrip("Z").partition(".")
    whole = calendar.timegm(time.strptime(seconds[:19], "%Y-%m-%dT%H:%M:%S"))
    return "%d.%s" % (whole, fraction) if fraction.isdigit() else "%d" % whole


def main(request: dict[str, Any], lines: BinaryIO) -> None:
    """Watch until the input closes, or without ``follow`` until the logs were read to their end."""
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
