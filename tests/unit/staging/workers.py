"""Workers of several nodes as processes on this machine, controlled by the test."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from sparkcluster.hosts import program
from sparkcluster.staging.order import files_lines

CLUSTER, ADDRESS = "atlas", "127.0.0.1"
LIMIT_S = 60.0


def eventually(condition: Callable[[], Any], what: Callable[[], str] | None = None, limit_s: float = LIMIT_S) -> Any:
    """The value of ``condition`` when it becomes true; at the time limit ``what`` describes the actual state."""
    until = time.monotonic() + limit_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < until, what() if what else "time limit exceeded"
        time.sleep(0.02)


class Worker:
    """One node: its directory, its staging lease, and the program that follows its worker.

    Attributes:
        said: last value of each message.
        root: directory of the files.
        env: environment of its programs; None for the tests' environment.
    """

    def __init__(self, name: str, place: Path) -> None:
        self.name = name
        self.root = place / name / "model"
        self.state = place / name / "state"
        self.token = hashlib.sha256(name.encode()).hexdigest()[:32]
        self.said: dict[str, Any] = {}
        self.epoch = 0
        self.env: dict[str, str] | None = None
        self._files: list[dict[str, Any]] = []
        self._lock: Any = None
        self._follower: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    @property
    def directory(self) -> Path:
        name = hashlib.sha256(str(self.root).encode()).hexdigest()[:16]
        return self.state / "clusters" / CLUSTER / "staging" / name

    def take_lease(self, epoch: int = 1, *, granted: bool = True) -> None:
        """An operator takes the lease."""
        self.let_go()
        self.epoch = epoch
        place = self.state / "clusters" / CLUSTER
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        document = {"epoch": epoch, "operator": f"op{epoch}", "granted": granted}
        (place / "staging.json.new").write_text(json.dumps(document))
        (place / "staging.json.new").rename(place / "staging.json")
        self._lock = (place / "staging.lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def let_go(self) -> None:
        """The lease expires."""
        if self._lock is not None:
            self._lock.close()

    def begin(self, files: Iterable[dict[str, Any]] = (), **more: Any) -> None:
        """Start the worker of ``files``, or of the previous files, or follow the running one."""
        self.detach()
        if not self.epoch:
            self.take_lease()
        self._files = list(files) or self._files
        request = {
            "files": len(self._files), "token": self.token,
            "listen": {ADDRESS: False}, "root": str(self.root),
            "state_dir": str(self.state), "cluster": CLUSTER, "epoch": self.epoch, "kind": "staging", **more,
        }  # fmt: skip
        argv, stdin = program.command("worker", request)
        argv[0] = sys.executable
        self.said = {}
        self._follower = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.env)
        assert self._follower.stdin
        self._follower.stdin.write(stdin + files_lines(self._files))
        self._follower.stdin.flush()
        self._reader = threading.Thread(target=self._read, args=(self._follower, self.said), daemon=True)
        self._reader.start()

    @staticmethod
    def _read(follower: subprocess.Popen[bytes], said: dict[str, Any]) -> None:
        assert follower.stdout
        for line in follower.stdout:
            said.update(json.loads(line))
        said["over"] = True

    def order(self, **order: Any) -> None:
        assert self._follower
        assert self._follower.stdin
        self._follower.stdin.write(json.dumps(order).encode() + b"\n")
        self._follower.stdin.flush()

    def wait(self, name: str, limit_s: float = LIMIT_S) -> Any:
        """The event ``name``."""

        def found() -> bool:
            return name in self.said or "over" in self.said

        eventually(found, lambda: f"{self.name} says nothing of {name}: {self.said}", limit_s)
        assert name in self.said, f"{self.name}: {self.said}"
        return self.said[name]

    @property
    def pid(self) -> int:
        return int(json.loads((self.directory / "state.json").read_text())["pid"])

    @property
    def peak_bytes(self) -> int:
        """Peak memory of its process."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def way(self, address: str = ADDRESS, **more: Any) -> dict[str, Any]:
        return {"address": address, "port": self.wait("ports")[address], "token": self.token, **more}

    def source(self, **more: Any) -> dict[str, Any]:
        return {"node": self.name, "ways": [self.way(**more)]}

    def detach(self) -> None:
        """Break the operator's connection."""
        if self._follower is None:
            return
        assert self._reader
        assert self._follower.stdin
        assert self._follower.stdout
        with contextlib.suppress(OSError):
            self._follower.stdin.close()
        self._follower.wait(60)
        self._reader.join(60)
        self._follower.stdout.close()
        self._follower = None

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            if _is_worker(self.pid):
                self.kill(signal.SIGKILL)
        self.detach()
        self.let_go()


def _is_worker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def written(root: Path, sizes: dict[str, int], *, hashes: bool = True) -> list[dict[str, Any]]:
    """Write files of random content; returns their list."""
    files = []
    for name, size in sizes.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with path.open("wb") as file:
            for begin in range(0, size, 1 << 20):
                data = os.urandom(min(1 << 20, size - begin))
                digest.update(data)
                file.write(data)
        os.utime(path, ns=(5, 7_000_000_000))
        known = digest.hexdigest() if hashes else None
        files.append({"path": name, "size": size, "mtime": 7_000_000_000, "sha256": known, "links": []})
    return files


def content(root: Path) -> dict[str, str]:
    """SHA-256 of the files below ``root``."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def chain(workers: Sequence[Worker]) -> None:
    """Each pulls from the previous one, or else from earlier ones; the last is not a source for the first."""
    sources = [each.source() for each in workers]
    for place, each in enumerate(workers):
        each.order(**{"from": sources[:place][::-1]})


class Proxy:
    """Forwards connections to ``port``, and returned data through ``change(place, data)``.

    Attributes:
        seen: forwarded data in both directions, if ``keep``.
    """

    def __init__(
        self, port: int, change: Callable[[int, bytearray], None] | None = None, *, keep: bool = False
    ) -> None:
        self.seen = bytearray()
        self._keep = keep
        self._change = change
        self._to = port
        self._listener = socket.create_server((ADDRESS, 0))
        self.port = self._listener.getsockname()[1]
        self._socks = [self._listener]
        self._thread(self._listen)

    @staticmethod
    def _thread(action: Callable[..., None], *args: Any) -> None:
        threading.Thread(target=action, args=args, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                far = socket.create_connection((ADDRESS, self._to), 5)
                far.settimeout(None)
                self._socks += [near, far]
                self._thread(self._pass, near, far, None)
                self._thread(self._pass, far, near, self._change)

    def _pass(self, source: socket.socket, target: socket.socket, change: Any) -> None:
        place = 0
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                if change:
                    change(place, data)
                place += len(data)
                if self._keep:
                    self.seen += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for sock in self._socks:
            sock.close()


def flip(at: int, *, every: int = 0) -> Callable[[int, bytearray], None]:
    """Flips byte ``at`` of the first connection that is long enough; with ``every`` of each one, and at each multiple.

    Which connection carries which file is random: to corrupt all files, ``every`` is about the size of one file.
    """
    left = [1]

    def change(place: int, data: bytearray) -> None:
        for position in range(at, place + len(data), every or (1 << 62)):
            if position >= place and left[0]:
                left[0] = int(bool(every))
                data[position - place] ^= 1

    return change
