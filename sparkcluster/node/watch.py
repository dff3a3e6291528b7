"""Watches the ranks of one node: a sign of life every tick, states, and new log lines.

Answers in JSON lines until its input closes, which is how it knows that nobody watches any more::

    {"tick": 3, "states": {NAME: {"state", "exit_code", "oom_killed", "error"}}, "listening": true,
     "links": {"enp1s0f0np0": true}}
    {"rank": NAME, "lines": ["…"]}

A state is ``created``, ``running``, ``restarting``, ``exited``, ``dead``, ``gone`` or ``unreadable`` (with
``error``). A rank's last lines come before the tick that says it is gone. Python 3.8, standard library.
"""

from __future__ import annotations

import calendar
import fcntl
import http.client
import json
import os
import queue
import re
import socket
import struct
import sys
import threading
import time
import urllib.parse
from typing import Any, BinaryIO, Callable, Iterator

from sparkcluster.node import common, docker
from sparkcluster.node.shared import RANK_FILE

LINE_BYTES = 4096
_SIOCGIFFLAGS, _IFF_RUNNING = 0x8913, 0x40  # linux/sockios.h, linux/if.h
_OVER = ("exited", "dead", "gone")
_ENDS = re.compile(rb"[\r\n]+")


def container_state(name: str) -> dict[str, Any]:
    """State of a container, from the Docker engine; never raises."""
    try:
        status, body = docker.read("/containers/%s/json" % urllib.parse.quote(name))
        if status == 404:
            return {"state": "gone"}
        if status != 200:
            return {"state": "unreadable", "error": body.decode(errors="replace")[:200]}
        document = json.loads(body.decode(errors="replace"))
        found = document["State"]
        state = {"state": found.get("Status") or ("running" if found.get("Running") else "exited")}
        if state["state"] not in ("running", "created"):
            state.update(exit_code=found.get("ExitCode"), oom_killed=bool(found.get("OOMKilled")))
        if found.get("Error"):
            state["error"] = found["Error"]
        state["since"] = found.get("StartedAt")
        return state
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        return {"state": "unreadable", "error": "%s: %s" % (type(error).__name__, error)}


def process_state(rank_dir: str) -> dict[str, Any]:
    """State of a rank that runs as a process, by its record; a pid alone could be another process's."""
    rank = common.read_json(os.path.join(rank_dir, RANK_FILE))
    if rank and common.start_ticks(rank["pid"]) == rank["start_ticks"]:
        return {"state": "running", "since": rank.get("started_at")}
    try:
        with open(os.path.join(rank_dir, "exit")) as file:
            return {"state": "exited", "exit_code": int(file.read().strip()), "oom_killed": False}
    except (OSError, ValueError):
        # A record without an exit code: its shell was killed as well.
        return {"state": "exited", "exit_code": None, "oom_killed": False} if rank else {"state": "gone"}


def split(buffer: bytes) -> tuple[list[str], bytes]:
    """Whole lines of ``buffer`` and its unfinished rest; a progress bar's carriage return ends a line too."""
    *whole, rest = _ENDS.split(buffer)
    if len(rest) > LINE_BYTES:
        whole.append(rest)
        rest = b""
    return [line[:LINE_BYTES].decode(errors="replace") for line in whole if line.strip()], rest


def frames(response: http.client.HTTPResponse, raw: bool) -> Iterator[bytes]:
    """Pieces of the engine's log stream; without a terminal each has 8 bytes of header before it."""
    while True:
        if raw:
            piece = response.read1(LINE_BYTES)
        else:
            header = response.read(8)
            if len(header) < 8:
                return
            piece = response.read(struct.unpack(">xxxxL", header)[0])
        if not piece:
            return
        yield piece


class Watch:
    """Log readers and the state poll of one node, each in a thread, joined in one queue."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.ranks: list[dict[str, Any]] = request["ranks"]
        self.tail = int(request.get("tail", 100))
        self.follow = bool(request.get("follow", True))
        self.interval_s = float(request.get("interval_s") or 2)
        self.port = request.get("engine_port")
        self.host = connectable(request.get("engine_host") or request.get("health_host"))
        self.interfaces: list[str] = request.get("interfaces") or []
        self.lines: queue.Queue[tuple[str, str]] = queue.Queue(20000)
        self.states: dict[str, dict[str, Any]] = {}
        self.listening: bool | None = None
        self.polled = threading.Event()
        self.hurry = threading.Event()
        self.drained = {rank["name"]: threading.Event() for rank in self.ranks}

    def put(self, name: str, buffer: bytes) -> bytes:
        """Queue the whole lines of ``buffer``; returns the rest."""
        lines, rest = split(buffer)
        for line in lines:
            self.lines.put((name, line))
        return rest

    def read_container(self, name: str, since: str | None) -> bool:
        """Queue a container's log up to its end; False where there is no such container yet.

        ``since`` is the start that was not yet seen of a container whose earlier life was already read.
        """
        query = "stdout=1&stderr=1&follow=%d" % (1 if self.follow else 0)
        if since:
            query += "&tail=all&since=%d" % calendar.timegm(time.strptime(since[:19], "%Y-%m-%dT%H:%M:%S"))
        else:
            query += "&tail=%d" % self.tail
        quoted = urllib.parse.quote(name)
        status, body = docker.read("/containers/%s/json" % quoted)
        if status != 200:
            return False
        raw = bool(json.loads(body.decode(errors="replace"))["Config"].get("Tty"))
        # No limit on the stream: a serving engine may be quiet for hours, and the ticks are the sign of life.
        connection, response = docker.get("/containers/%s/logs?%s" % (quoted, query), None)
        try:
            if response.status != 200:
                return False
            rest = b""
            for piece in frames(response, raw):
                rest = self.put(name, rest + piece)
            self.put(name, rest + b"\n")
        finally:
            connection.close()
        return True

    def follow_container(self, name: str) -> None:
        """Read a container's log, and continue where it was created or started again."""
        seen = None
        while True:
            since = self.states.get(name, {}).get("since")
            try:
                if since is not None and since == seen:
                    time.sleep(0.2)
                    continue
                self.drained[name].clear()
                if self.read_container(name, since if seen else None):
                    seen = container_state(name).get("since")
                    self.drained[name].set()
                    self.hurry.set()
            except (OSError, ValueError, KeyError, http.client.HTTPException):
                pass  # the state poll reports an engine that does not answer
            if not self.follow:
                self.drained[name].set()
                return
            time.sleep(min(0.5, self.interval_s))

    def follow_file(self, name: str, path: str) -> None:
        """Read a log file as it grows; one that was replaced or cut is read from its start."""
        place, inode, rest = None, None, b""
        while True:
            try:
                with open(path, "rb") as file:
                    status = os.fstat(file.fileno())
                    if place is None:
                        place = max(0, status.st_size - 200 * self.tail)
                        file.seek(place)
                        data = file.read()
                        place += len(data)
                        data = b"\n".join(_ENDS.split(data)[-self.tail - 1 :]) if self.tail else b""
                    else:
                        if status.st_ino != inode or status.st_size < place:
                            place = 0
                        file.seek(place)
                        data = file.read(1 << 20)
                        place += len(data)
                    inode = status.st_ino
                rest = self.put(name, rest + data)
            except OSError:
                data = b""
            gone = self.states.get(name, {}).get("state") in _OVER
            if not gone:
                self.drained[name].clear()
            if not data and (gone or not self.follow):
                rest = self.put(name, rest + b"\n")
                self.drained[name].set()
                if not self.follow:
                    return
            if not data:
                time.sleep(0.2)

    def poll(self) -> None:
        """Update the states in a separate thread, so that a hanging Docker engine does not stop the ticks."""
        while True:
            for rank in self.ranks:
                if rank.get("runtime") == "process":
                    self.states[rank["name"]] = process_state(common.expand(rank["rank_dir"]))
                else:
                    self.states[rank["name"]] = container_state(rank["name"])
            if self.port:
                self.listening = accepts(self.host, int(self.port))
            self.polled.set()
            self.hurry.wait(self.interval_s / 2)
            self.hurry.clear()

    def start(self) -> None:
        """Start the threads; they end with the program."""
        jobs: list[tuple[Callable[..., None], tuple[str, ...]]] = [(self.poll, ())]
        for rank in self.ranks:
            if rank.get("runtime") == "process":
                jobs.append((self.follow_file, (rank["name"], os.path.join(common.expand(rank["rank_dir"]), "log"))))
            else:
                jobs.append((self.follow_container, (rank["name"],)))
        for job, arguments in jobs:
            threading.Thread(target=job, args=arguments, daemon=True).start()

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """States in the controller's format."""
        return {
            name: {key: value for key, value in state.items() if key != "since"}
            for name, state in sorted(self.states.items())
        }

    def batch(self, wait_s: float) -> list[dict[str, Any]]:
        """Log lines that arrive within ``wait_s``, as one event per rank."""
        try:
            name, line = self.lines.get(timeout=wait_s)
        except queue.Empty:
            return []
        time.sleep(0.02)
        batches: dict[str, list[str]] = {name: [line]}
        for _ in range(min(500, self.lines.qsize())):
            name, line = self.lines.get()
            batches.setdefault(name, []).append(line)
        return [{"rank": name, "lines": lines} for name, lines in batches.items()]

    def until_tick(self, reported: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Events up to the next tick, which comes early where a rank's state changed."""
        until = time.monotonic() + self.interval_s * 0.75
        while time.monotonic() < until:
            yield from self.batch(0.1)
            for name, state in self.snapshot().items():
                if state != reported.get(name):
                    until = 0.0
                    if state["state"] in _OVER:
                        self.drained[name].wait(0.5)
        while not self.lines.empty():
            yield from self.batch(0)


def connectable(host: str | None) -> str:
    """Address under which what listens on ``host`` is reached from here."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host or "127.0.0.1", host or "127.0.0.1")


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


def end_with(lines: BinaryIO) -> None:
    """End this program when its input does, whatever else is under way."""
    try:
        while lines.read(1):
            pass
    except (OSError, ValueError):
        pass
    os._exit(0)


def main(request: dict[str, Any], lines: BinaryIO) -> None:
    """Watch until the input closes, or without ``follow`` report the logs' last lines and the states once."""
    watch = Watch(request)
    if watch.follow:
        threading.Thread(target=end_with, args=(lines,), daemon=True).start()
    watch.start()
    try:
        run(watch)
        sys.stdout.flush()
    except OSError:
        pass  # the reader has closed its end
    # Not by returning: the thread that waits for input holds a lock that an orderly end would wait for.
    os._exit(0)


def run(watch: Watch) -> None:
    """Report events, tick by tick."""
    tick = 0
    reported: dict[str, dict[str, Any]] = {}
    watch.polled.wait(watch.interval_s)
    if not watch.follow:
        for rank in watch.drained.values():
            rank.wait(10)
    while True:
        for event in watch.until_tick(reported):
            common.emit(event)
        reported = watch.snapshot()
        sign: dict[str, Any] = {"tick": tick, "states": reported}
        if watch.interfaces:
            sign["links"] = {name: carrier(name) for name in watch.interfaces}
        if watch.port:
            sign["listening"] = watch.listening
        common.emit(sign)
        tick += 1
        if not watch.follow:
            return
