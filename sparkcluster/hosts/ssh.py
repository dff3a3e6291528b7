"""A node reached by SSH: one connection, many commands at once."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sparkcluster.errors import CommandTimeout, HostError, HostLost, HostTimeout, UsageError
from sparkcluster.hosts import channel
from sparkcluster.hosts.base import Result, Stream, check_put
from sparkcluster.hosts.handshake import connect, left
from sparkcluster.hosts.paramiko_transport import Transport, paramiko
from sparkcluster.hosts.quote import put_argv, shown
from sparkcluster.hosts.resolve import SshTarget

# OpenSSH's default of MaxSessions is 10; the last is reserved for ending commands that timed out.
_SESSIONS = 9


class SshHost:
    """A machine with an sshd. Connects at first use; a failure to connect is kept, not retried.

    Args:
        name: the node's name in the inventory.
        target: where and how.
        jump: the host of ``target.jump`` if several nodes share it; default: another one.
    """

    def __init__(self, name: str, target: SshTarget, jump: SshHost | None = None) -> None:
        self._name = name
        self.target = target
        self._own_jump = jump is None and target.jump is not None
        self._jump = SshHost(name, target.jump) if jump is None and target.jump is not None else jump
        self._transport: Transport | None = None
        self._failure: HostError | UsageError | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._sessions = threading.BoundedSemaphore(_SESSIONS)

    @property
    def name(self) -> str:
        """The node's name in the inventory."""
        return self._name

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30) -> Result:
        """Run ``argv`` with ``stdin`` and wait for its end; CommandTimeout after ``timeout_s``."""
        return self._run(argv, [stdin], len(stdin), timeout_s)

    def _run(self, argv: Sequence[str], stdin: Iterable[bytes], size_bytes: int, timeout_s: float) -> Result:
        transport = self.transport()
        deadline = time.monotonic() + timeout_s
        command = self._start(transport, argv, deadline)
        return channel.run(command, stdin, size_bytes, timeout_s)

    def stream(self, argv: Sequence[str], *, stdin: bytes = b"") -> Stream:
        """Start ``argv``, send it ``stdin`` and leave its input open."""
        transport = self.transport()
        command = self._start(transport, argv, time.monotonic() + self.target.connect_timeout_s + 1)
        return channel.ChannelStream(command, stdin)

    def put(self, content: bytes | Path, path: str, *, mode: int = 0o600) -> None:
        """Write a file atomically, with its directories; ``~/`` is the user's home there."""
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        chunks = _chunks(content) if isinstance(content, Path) else [content]
        # 1 MB/s is slower than any network that a Spark is on
        check_put(self._name, path, self._run(put_argv(path, mode, size), chunks, size, 30 + size / 1e6))

    def close(self) -> None:
        """Close the connection. Never raises."""
        self._closed = True
        if self._transport is not None:
            _hang_up(self._transport)
        if self._own_jump and self._jump is not None:
            self._jump.close()

    def transport(self) -> Transport:
        """The open transport; connects if it is not open.

        A connection that broke is opened again; one that could not be opened is not retried in this run.
        """
        with self._lock:
            if self._closed:
                raise HostLost(f"connection to {self._name} was closed", node=self._name, step="connect")
            if self._failure is not None:
                raise _again(self._failure)
            if self._transport is None or not self._transport.is_active():
                try:
                    through = None if self._jump is None else self._jump.transport()
                    self._transport = connect(self._name, self.target, through)
                except (HostError, UsageError) as error:
                    self._failure = error
                    raise
                if self._closed:
                    _hang_up(self._transport)
                    raise HostLost(f"connection to {self._name} was closed", node=self._name, step="connect")
            return self._transport

    def _start(self, transport: Transport, argv: Sequence[str], deadline: float) -> channel.Command:
        what = shown(argv)
        while True:
            if not self._sessions.acquire(timeout=left(deadline)):
                raise CommandTimeout(f"{self._name} has no free session for {what}", node=self._name, step=what)
            limit = min(left(deadline), self.target.connect_timeout_s)
            begin = time.monotonic()
            try:
                opened = transport.open_session(timeout=limit)
                return channel.Command(self._name, opened, argv, self._sessions.release)
            except (paramiko.SSHException, EOFError, OSError) as error:
                self._sessions.release()
                self._judge(error, transport, what, deadline, waited_out=time.monotonic() - begin >= limit)
                time.sleep(0.05)
            except BaseException:
                self._sessions.release()
                raise

    def _judge(self, error: Exception, transport: Transport, what: str, deadline: float, *, waited_out: bool) -> None:
        """Raise the error of a session that was not opened, or return if a retry may succeed.

        The type of ``error`` does not say that it was refused: of two refused at once, paramiko reports one.
        """
        if not transport.is_active():
            raise HostLost(
                f"connection to {self._name} broke before {what} started", node=self._name, step=what
            ) from error
        if waited_out and time.monotonic() < deadline:
            # sshd does not answer requests; a retry would wait as long
            failure = HostTimeout(
                f"{self._name}: sshd opened no session within {self.target.connect_timeout_s:g} s",
                node=self._name,
                step=what,
                hint=f"ssh -v {self.target.login} true",
            )
            with self._lock:
                self._failure = failure
            threading.Thread(target=transport.close, daemon=True).start()
            raise failure from error
        if time.monotonic() >= deadline:
            raise CommandTimeout(
                f"{what} on {self._name} did not start in time: {error}",
                node=self._name,
                step=what,
                hint=None if waited_out else "check MaxSessions in /etc/ssh/sshd_config of the node",
            ) from error


def _hang_up(transport: Transport) -> None:
    """Close at once: without the shutdown, paramiko's thread notices a tenth of a second later."""
    with contextlib.suppress(OSError, EOFError, AttributeError):
        transport.sock.shutdown(socket.SHUT_RDWR)
    transport.close()


def _again(error: HostError | UsageError) -> HostError | UsageError:
    """A copy of an error: one object raised in many threads would mix up their tracebacks."""
    return type(error)(error.message, node=error.node, step=error.step, hint=error.hint)


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            yield chunk
