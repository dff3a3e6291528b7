"""Watches the ranks of a node: a heartbeat every tick, states, and new log lines.

Prints JSON lines until its input closes, which means that the controller has stopped reading, or without ``follow``
until the ends of the logs::

    {"states": {NAME: {"state", "exit_code", "oom_killed", "error"}}, "links": {"enp1s0f0np0": true}, "listening": true,
     "memory": {"before", "lowest", "now"}}
    {"rank": NAME, "lines": ["…"], "times": [1795230001.5], "at": "position in the log after these lines"}

``links`` are the carriers of ``interfaces``; ``listening`` is whether the API at ``api`` (host, port) accepts
connections. ``memory`` is MemAvailable in bytes: at the start, the lowest since, and now. ``times`` are when lines were
logged, in seconds since 1970, for containers only; with ``since``, earlier lines are skipped. With ``"from": {NAME:
at}`` a log continues there, so that a controller that lost its connection gets each line exactly once. A state is as in
``ranks``, or ``unreadable`` (with ``error``).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import os
import queue
import socket
import struct
import threading
import time
from functools import partial
from typing import Any, BinaryIO

from sparkcluster.node import common, ranks, start_lock
from sparkcluster.node.machine import DOCKER_LIMIT_S, Machine, Unreadable

# Limits of a document: as JSON it may be six times as large, and the controller accepts lines of 1 MB. Each line
# counts for some more characters: 2,000 lines take the controller 30 ms.
BATCH_CHARACTERS, PER_LINE = 1 << 16, 32
_SIOCGIFFLAGS, _IFF_RUNNING = 0x8913, 0x40  # linux/sockios.h, linux/if.h


class Watch:
    """Log readers and the state poll of a node, each in a thread, joined in one queue."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.machine = Machine(docker_limit_s=DOCKER_LIMIT_S)
        self.request = request
        self.interval_s = float(request["interval_s"])
        self.start_at: dict[str, str] = request["from"]
        # name of the rank, line, position in the log after it, and time when it was logged
        self.lines: queue.Queue[tuple[str, str, str, float | None]] = queue.Queue(20000)
        self.readers: list[threading.Thread] = []
        self.rank_dirs: dict[str, str] = {rank["name"]: rank.get("rank_dir", "") for rank in request["ranks"]}
        self.secrets: dict[str, list[str]] = {}
        self.states: dict[str, dict[str, Any]] = {}
        self.listening: bool | None = None
        self.memory = dict.fromkeys(("before", "lowest", "now"), start_lock.available())

    def follow_container(self, name: str) -> None:
        """Read a container's log to its end; with ``follow``, also retry if Docker does not answer."""
        while True:
            try:
                return self.read_container(name)
            except (Unreadable, ValueError) as error:  # text without a timestamp is an error of Docker
                if not self.request["follow"]:
                    self.lines.put((name, "[sparkcluster] this log is incomplete: %s" % error, "", None))
                    return None
            time.sleep(0.5)

    def read_container(self, name: str) -> None:
        """Queue a container's log up to its end, starting where it was last read."""
        begin, follow = self.start_at.get(name, ""), self.request["follow"]
        query = "timestamps=1&follow=%d&tail=%s" % (follow, "all" if begin else self.request["tail"])
        since = begin or self.request.get("since")
        if since:
            query += "&since=%s" % since
        # a serving engine may log nothing for hours; the ticks are the heartbeat
        for piece in ranks.log_pieces(self.machine, name, query, None if follow else self.machine.docker_limit_s):
            stamp, _, text = piece.partition(b"Z ")
            at = unix_time(stamp.decode())
            if at > begin:
                self.start_at[name] = at
                for line in ranks.text_lines(text, self.hidden(name)):
                    self.lines.put((name, line, at, float(at)))

    def follow_file(self, name: str, path: str) -> None:
        """Read a log file as it grows; a truncated file is read from its start."""
        position = int(self.start_at.get(name, -1))
        while True:
            over = not self.request["follow"] or self.states.get(name, {}).get("state") in ranks.OVER
            data = b""
            with contextlib.suppress(OSError), open(path, "rb") as file:
                if position < 0:
                    position = last_lines(file, self.request["tail"])
                elif position > file.seek(0, os.SEEK_END):
                    position = 0
                file.seek(position)
                data = file.read()
            for line in data.splitlines(keepends=True):
                if not (line.endswith((b"\n", b"\r")) or len(line) > ranks.LINE_BYTES or over):
                    break
                position += len(line)
                for text in ranks.text_lines(line, self.hidden(name)):
                    self.lines.put((name, text, str(position), None))
            if not self.request["follow"]:
                return
            time.sleep(0.2)

    def hidden(self, name: str) -> list[str]:
        """The secrets of a rank, whose file is there before its log: engines print their arguments."""
        if name not in self.secrets:
            self.secrets[name] = ranks.secrets(self.rank_dirs[name])
        return self.secrets[name]

    def state(self, rank: dict[str, Any]) -> dict[str, Any]:
        """State of a rank in the controller's format."""
        try:
            if rank["runtime"] == "process":
                found = ranks.process(self.machine, rank["rank_dir"])
            else:
                found = ranks.container(self.machine, rank["name"])
        except Unreadable as error:
            return {"state": "unreadable", "error": str(error)}
        return {key: found[key] for key in ("state", "exit_code", "oom_killed", "error")}

    def poll(self) -> None:
        """Update the states in a separate thread, so that a hanging Docker does not stop the ticks."""
        while True:
            self.states = {rank["name"]: self.state(rank) for rank in self.request["ranks"]}
            if self.request.get("api"):
                self.listening = accepts(*self.request["api"])
            time.sleep(self.interval_s / 2)

    def start(self) -> None:
        """Start the threads; they end with the program."""
        threading.Thread(target=self.poll, daemon=True).start()
        for rank in self.request["ranks"]:
            follow = partial(self.follow_container, rank["name"])
            if rank["runtime"] == "process":
                follow = partial(self.follow_file, rank["name"], rank["rank_dir"] + "/log")
            self.readers.append(threading.Thread(target=follow, daemon=True))
            self.readers[-1].start()

    def emit_lines(self) -> None:
        """Print new lines, with the lines of a rank in as few documents as possible."""
        while not self.lines.empty():
            batches: dict[str, dict[str, Any]] = {}
            size = 0
            while size < BATCH_CHARACTERS and not self.lines.empty():
                name, line, at, logged = self.lines.get()
                batch = batches.setdefault(name, {"rank": name, "lines": [], "times": []})
                batch["lines"].append(line)
                batch["times"] += [] if logged is None else [logged]
                batch["at"] = at
                size += len(line) + PER_LINE
            for batch in batches.values():
                common.emit(batch)

    def report(self) -> None:
        """Print log lines as they arrive, and a heartbeat every tick and when a rank's state has changed."""
        reported: dict[str, dict[str, Any]] = {}
        reading = True
        while reading:
            reading = self.request["follow"] or any(reader.is_alive() for reader in self.readers)
            for _ in range(round(7.5 * self.interval_s)):
                time.sleep(0.1)
                now = start_lock.available()
                self.memory.update(now=now, lowest=min(now, self.memory["lowest"]))
                self.emit_lines()
                if self.states != reported:
                    break
            reported = self.states
            links = {name: carrier(name) for name in self.request.get("interfaces", ())}
            found = {"links": links, "listening": self.listening, "memory": self.memory}
            common.emit({"states": reported, **found})


def last_lines(file: BinaryIO, count: int) -> int:
    """Offset of the last lines of a file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 200 * count))
    lines = file.read().splitlines(keepends=True)
    return size - sum(map(len, lines[max(0, len(lines) - count) :]))


def carrier(interface: str) -> bool:
    """Whether a cable with a live far end is plugged in; False if the interface is down or missing.

    Uses the kernel instead of /sys, which is not always mounted: an unreadable file must not look like an unplugged
    cable.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack("16s24x", interface.encode()[:15]))
        except OSError:
            return False
    return bool(struct.unpack_from("H", answer, 16)[0] & _IFF_RUNNING)


def unix_time(stamp: str) -> str:
    """Seconds since 1970 for a time with nanoseconds, as Docker writes it before each piece."""
    return "%d%s" % (dt.datetime.fromisoformat(stamp[:19] + "+00:00").timestamp(), stamp[19:])


def accepts(host: str, port: int) -> bool:
    """Whether a server accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=0.5):
            return True
    except OSError:
        return False


def main(request: dict[str, Any], lines: BinaryIO) -> None:
    """Watch until the input closes, or without ``follow`` until the ends of the logs."""
    common.end_with(lines)
    watch = Watch(request)
    watch.start()
    with contextlib.suppress(OSError):  # the reader has closed its end
        watch.report()
    # returning would wait for threads that hold the lock of a buffer
    os._exit(0)
