"""Access to files, programs, Docker and addresses of a node, for readers, which can run in parallel.

Tests use a subclass with a directory as root.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

LIMIT_S = 3.0  # for a program or an answer of Docker
GRACE_S = 0.3  # for a reader, so that a program's limit is reached first and reported
DOCKER_LIMIT_S = 5.0  # for an answer of Docker while ranks run: it is slow while weights load

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/:@")


class Unreadable(Exception):
    """A reading that failed, with the reason."""


def because(error: BaseException, path: str = "") -> str:
    """The reason for ``error`` in a few words that a check can match."""
    if isinstance(error, OSError) and error.errno:
        named = path or error.filename
        return os.strerror(error.errno).lower() + (": %s" % named if named else "")
    if isinstance(error, (Unreadable, OSError)):
        return str(error)
    return "%s: %s" % (type(error).__name__, error)


def failed(program: str, exit_code: int, output: str, line: int = -1) -> Unreadable:
    """The error for a failed program, with a line of its output, by default the last."""
    lines = output.strip().splitlines() or ["no output"]
    return Unreadable("%s exit %d: %s" % (program, exit_code, lines[line].strip()))


def marked(output: str, mark: str) -> dict[str, Any] | None:
    """The JSON document after ``mark`` in the last line that starts with it; other output is ignored."""
    line = next((each for each in reversed(output.splitlines()) if each.startswith(mark)), "")
    try:
        document = json.loads(line[len(mark) :])
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def owner(uid: int) -> str:
    """The name of a user, or the number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class Machine:
    """The machine that this runs on, or the file tree below ``root``."""

    def __init__(self, root: str = "/", docker_limit_s: float = LIMIT_S) -> None:
        self.root = root
        self.docker_limit_s = docker_limit_s

    def at(self, path: str) -> str:
        """``path`` below the root."""
        return path if self.root == "/" else os.path.join(self.root, path.lstrip("/"))

    def bytes(self, path: str) -> bytes:
        """Content of a file; Unreadable with reason and ``path``."""
        try:
            # unbuffered, which is 1.5 times as fast: a GID table is a thousand files
            with open(self.at(path), "rb", buffering=0) as file:
                return file.read()
        except OSError as error:
            raise Unreadable(because(error, path)) from None

    def text(self, path: str, default: str | None = None) -> str:
        """Content of a file as text, with invalid UTF-8 replaced; ``default``, if any, if it cannot be read."""
        try:
            return self.bytes(path).decode("utf-8", "replace")
        except Unreadable:
            if default is None:
                raise
            return default

    def line(self, path: str) -> str | None:
        """First line of a small file; None if it is empty or cannot be read (EINVAL in sysfs)."""
        return self.text(path, "").strip().split("\n")[0] or None

    def names(self, path: str) -> list[str]:
        """Sorted names in a directory; empty if it does not exist."""
        try:
            return sorted(os.listdir(self.at(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def document(self, path: str) -> dict[str, Any]:
        """The JSON object in a file; Unreadable if there is none."""
        try:
            document = json.loads(self.text(path))
        except ValueError:
            raise Unreadable("not JSON: %s" % path) from None
        if not isinstance(document, dict):
            raise Unreadable("not a JSON object: %s" % path)
        return document

    def exists(self, path: str) -> bool:
        """Whether ``path`` exists; False for a broken link."""
        return os.path.exists(self.at(path))

    def space(self, path: str) -> tuple[int, int]:
        """Total bytes, and bytes available to users, of the file system of ``path``."""
        found = os.statvfs(self.at(path))
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def run(self, argv: list[str], limit_s: float = LIMIT_S) -> tuple[int, str]:
        """Exit code and output of a program; its standard error, if it fails without output.

        Raises:
            Unreadable: it is not installed, or did not answer within ``limit_s``.
        """
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit_s,
                env=dict(os.environ, LC_ALL="C"),
                check=False,
            )
        except FileNotFoundError:
            raise Unreadable("%s is not installed" % argv[0]) from None
        except subprocess.TimeoutExpired:
            raise Unreadable("no answer within %g s: %s" % (limit_s, argv[0])) from None
        output = done.stdout or (done.stderr if done.returncode else b"")
        return done.returncode, output.decode("utf-8", "replace")

    @contextlib.contextmanager
    def docker_stream(
        self, path: str, limit_s: float | None, method: str = "GET", headers: Sequence[str] = ()
    ) -> Iterator[tuple[int, BinaryIO]]:
        """HTTP status and body stream of ``GET path`` (or another ``method``) from Docker.

        HTTP/1.0 avoids chunked responses, and importing an HTTP client takes 40 ms.

        Raises:
            Unreadable: Docker does not answer, pauses for longer than ``limit_s``, or denies access.
        """
        host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        if not host.startswith("unix://"):
            raise Unreadable("DOCKER_HOST is %s, but only unix:// is supported" % host)
        where = host[len("unix://") :]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(limit_s)
                connection.connect(self.at(where))
                lines = ["%s %s HTTP/1.0" % (method, path), "Host: docker", *headers, "", ""]
                connection.sendall("\r\n".join(lines).encode())
                with connection.makefile("rb") as answer:
                    status = int(answer.readline().split()[1])
                    while answer.readline().strip():
                        pass
                    yield status, answer
        except TimeoutError:
            raise Unreadable("no answer within %g s: %s" % (limit_s or 0, where)) from None
        except OSError as error:
            raise Unreadable(because(error, where)) from None
        except (IndexError, ValueError):
            raise Unreadable("not a Docker engine: %s" % where) from None

    def docker_document(self, path: str, kind: type = dict) -> Any:
        """The JSON document of ``GET path`` from Docker; None for status 404.

        Raises:
            Unreadable: the answer is not a document of this ``kind``.
        """
        with self.docker_stream(path, self.docker_limit_s) as (status, body):
            document = json.loads(body.read() or b"null")
        if status == 404:
            return None
        if status != 200 or not isinstance(document, kind):
            raise Unreadable("the Docker engine answers %d to %s" % (status, path.partition("?")[0]))
        return document

    def addresses(self) -> dict[str, list[str]]:
        """IPv4 addresses with prefix, by interface."""
        found: dict[str, list[str]] = {}
        for each in json.loads(self.run(["ip", "-j", "addr"])[1]):
            ipv4 = [entry for entry in each["addr_info"] if entry["family"] == "inet"]
            found[each["ifname"]] = ["%s/%d" % (entry["local"], entry["prefixlen"]) for entry in ipv4]
        return found

    def resolve(self, name: str) -> list[str]:
        """IPv4 addresses of ``name``; empty if it does not exist.

        Raises:
            Unreadable: the resolver failed.
        """
        try:
            found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
                return []
            raise Unreadable("%s: %s" % ((error.strerror or "resolver failed").lower(), name)) from None
        return list(dict.fromkeys(str(each[4][0]) for each in found))

    def reached_at(self) -> str | None:
        """The node's address in this SSH connection; None without SSH."""
        fields = os.environ.get("SSH_CONNECTION", "").split()
        return fields[2] if len(fields) == 4 else None

    def identity(self) -> dict[str, Any]:
        """User, groups, home, interpreter and architecture."""
        uid = os.getuid()
        return {
            "user": owner(uid),
            "uid": uid,
            "groups": self.run(["id", "-Gn"])[1].split(),
            "home": os.path.expanduser("~"),
            "python": {"executable": sys.executable, "version": sys.version.split()[0]},
            "architecture": os.uname().machine,
            "hostname": socket.gethostname(),
            # prefer the file, as other tools on the node do
            "kernel": self.line("/proc/sys/kernel/osrelease") or os.uname().release,
            "clock_s": time.time(),
        }


class Readings:
    """Runs readers in threads, and collects their results within ``limit_s``."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began = time.monotonic() + GRACE_S
        self._values: dict[str, Any] = {}
        self._threads: dict[str, threading.Thread] = {}

    def start(self, key: str, reader: Callable[[], Any]) -> None:
        """Start a reader, in a daemon thread, so that a hanging disk does not block the exit."""

        def work() -> None:
            try:
                self._values[key] = reader()
            except Exception as error:
                self._values[key] = {"unread": because(error)}

        self._threads[key] = threading.Thread(target=work, name=key, daemon=True)
        self._threads[key].start()

    def all(self, readers: dict[str, Callable[[], Any]]) -> dict[str, Any]:
        """The results of all ``readers``."""
        for key, reader in readers.items():
            self.start(key, reader)
        return {key: self.value(key) for key in readers}

    def value(self, key: str) -> Any:
        """The result of the reader ``key``, or why there is none; None if there is no such reader."""
        if key not in self._threads:
            return None
        self._threads[key].join(max(0.0, self._began + self._limit_s - time.monotonic()))
        return self._values.get(key, {"unread": "no answer within %g s" % self._limit_s})


def unread(value: Any) -> bool:
    """Whether ``value`` is the reason for a failed reading."""
    return isinstance(value, dict) and set(value) == {"unread"}


def quoted(text: str) -> str:
    """``text`` quoted for a URL's path; an image reference keeps its slashes and colons.

    Avoids ``urllib.parse``, which takes 2 ms to import.
    """
    return "".join(chr(each) if each in _PLAIN else "%%%02X" % each for each in text.encode("utf-8", "replace"))
