"""A command on an SSH channel."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from sparkcluster.errors import HostLost
from sparkcluster.hosts.base import LineStream, Result, timed_out
from sparkcluster.hosts.handshake import left
from sparkcluster.hosts.paramiko_transport import exit_code, paramiko, send_exec
from sparkcluster.hosts.quote import MARK, end_line, named, shown

_CHUNK = 1 << 15  # what one SSH packet holds
_INLINE = 1 << 14  # input so short that sending it cannot block, whatever the command does with it
_FINISH_S = 5
_STDERR_KEPT = 1 << 20
_BROKEN = (OSError, EOFError, paramiko.SSHException)  # what paramiko raises on a connection that broke
_END_S = 2
# Ending a command takes 3 s at most, unless the connection takes no data.
_BLOCKED_S = 10


class Command:
    """A command on a channel of its own; ``done`` is called once, when the channel is free again."""

    def __init__(self, name: str, channel: paramiko.Channel, argv: Sequence[str], done: Callable[[], None]) -> None:
        self.name = name
        self.task = shown(argv)
        self.channel = channel
        self._done: Callable[[], None] | None = done
        self._ending = threading.Lock()
        self._stderr: list[bytes] = []
        self._reader = threading.Thread(target=self._drain_stderr, daemon=True)
        self._pid: int | None = None
        self._has_pid = threading.Event()
        send_exec(channel, named(argv))

    def watch_stderr(self) -> None:
        """Begin to collect standard error: unread, it would stop the command."""
        self._reader.start()

    def _drain_stderr(self) -> None:
        try:
            self._collect_stderr()
        finally:
            self._has_pid.set()

    def _collect_stderr(self) -> None:
        size = 0
        while True:
            try:
                chunk = self.channel.recv_stderr(_CHUNK)
            except TimeoutError:
                if self.channel.closed:
                    return
                continue
            except _BROKEN:
                return
            if not chunk:
                return
            if self._pid is None:
                chunk = self._take_name(b"".join(self._stderr) + chunk)
                self._stderr.clear()
                size = 0
            self._stderr.append(chunk)
            size += len(chunk)
            while size > _STDERR_KEPT and len(self._stderr) > 1:
                size -= len(self._stderr.pop(0))

    def _take_name(self, text: bytes) -> bytes:
        """``text`` without the line that names its process; a login shell may print something before it."""
        match = MARK.search(text)
        if match is None:
            return text
        self._pid = int(match[1])
        self._has_pid.set()
        return text[: match.start()] + text[match.end() :]

    def result(self, stdout: bytes, deadline: float) -> Result:
        """How it ended, once its output has; TimeoutError after ``deadline``."""
        self._reader.join(left(deadline))
        if self._reader.is_alive():
            raise TimeoutError
        code = exit_code(self.channel, left(deadline))
        if code is None:
            self.lost(None)
        return Result(code, stdout, b"".join(self._stderr))

    def lost(self, error: BaseException | None) -> NoReturn:
        """Raise HostLost for a command whose exit code did not arrive."""
        self.end()
        reason = f": {error}" if error and str(error) else ""
        raise HostLost(
            f"connection to {self.name} broke during {self.task}{reason}", node=self.name, step=self.task
        ) from error

    def end(self, *, kill: bool = False) -> None:
        """Close the channel, with ``kill`` after ending the command. Never raises, takes at most 2 s."""
        with self._ending:
            done, self._done = self._done, None
        if done is None:
            return

        def leave() -> None:
            with contextlib.suppress(*_BROKEN):
                if kill and not self.channel.closed:
                    self._kill()
            with contextlib.suppress(*_BROKEN):
                self.channel.close()

        leaving = threading.Thread(target=leave, daemon=True)
        leaving.start()
        leaving.join(_END_S)
        if leaving.is_alive():
            threading.Thread(target=self._close_if_blocked, args=(leaving,), daemon=True).start()
        done()

    def _close_if_blocked(self, leaving: threading.Thread) -> None:
        """Close the connection if the node takes no data, which paramiko would wait for without a limit.

        A node that is merely slow keeps it: other commands run on it.
        """
        leaving.join(_BLOCKED_S - _END_S)
        if leaving.is_alive():
            self.channel.get_transport().close()

    def _kill(self) -> None:
        """End the command's process group through another session."""
        if not self._has_pid.wait(0.5) or self._pid is None:
            return
        session = self.channel.get_transport().open_session(timeout=1)
        session.settimeout(1.5)
        try:
            send_exec(session, end_line(self._pid))
            session.recv(1)
        finally:
            session.close()


def run(command: Command, stdin: Iterable[bytes], size_bytes: int, timeout_s: float) -> Result:
    """Feed ``stdin`` to ``command`` and wait for its end, reading its output meanwhile."""
    deadline = time.monotonic() + timeout_s
    channel = command.channel
    channel.settimeout(timeout_s)
    command.watch_stderr()

    def feed() -> None:
        # A command may end without reading its input: then its exit code counts.
        with contextlib.suppress(*_BROKEN):
            for chunk in stdin:
                _send(channel, chunk)
            channel.shutdown_write()

    if size_bytes <= _INLINE:
        feed()
    else:
        threading.Thread(target=feed, daemon=True).start()
    return _until_end(command, b"", deadline, f"{timeout_s:g} s")


def _until_end(command: Command, received: bytes, deadline: float, within: str, *, close_input: bool = False) -> Result:
    """Read ``command`` to its end after what was ``received`` already; ``within`` is the limit in words.

    Raises:
        CommandTimeout: it did not end before ``deadline``; it was killed.
        HostLost: the connection broke.
    """
    channel, pieces = command.channel, [received]
    try:
        if close_input:
            channel.shutdown_write()
        while True:
            channel.settimeout(left(deadline))
            chunk = channel.recv(1 << 18)
            if not chunk:
                break
            pieces.append(chunk)
        result = command.result(b"".join(pieces), deadline)
    except TimeoutError:
        command.end(kill=True)
        raise timed_out(command.name, command.task, f"did not end within {within}") from None
    except _BROKEN as error:
        command.lost(error)
    except BaseException:
        command.end(kill=True)
        raise
    command.end()
    return result


def _send(channel: paramiko.Channel, data: bytes) -> None:
    view = memoryview(data)
    for start in range(0, len(view), _CHUNK):
        channel.sendall(bytes(view[start : start + _CHUNK]))


class ChannelStream(LineStream):
    """A command that prints lines; see ``hosts.base.Stream``."""

    def __init__(self, command: Command, stdin: bytes) -> None:
        super().__init__(command.name, command.task)
        self._command = command
        self._channel = command.channel
        command.watch_stderr()
        self._channel.settimeout(30)
        self.send(stdin)

    def _read(self, limit_s: float) -> bytes:
        self._channel.settimeout(limit_s)
        try:
            chunk = self._channel.recv(1 << 18)
        except TimeoutError:
            raise
        except _BROKEN as error:
            self._command.lost(error)
        if not chunk and not self._channel.get_transport().is_active():
            self._command.lost(None)
        return chunk

    def send(self, data: bytes) -> None:
        """Write to its standard input; HostLost if that is closed."""
        try:
            _send(self._channel, data)
        except TimeoutError:
            raise timed_out(self.name, self.task, "does not read its input") from None
        except _BROKEN as error:
            self._command.lost(error)

    def finish(self) -> Result:
        """Close its input, wait at most 5 s for its end, and return how it ended."""
        deadline = time.monotonic() + _FINISH_S
        within = f"{_FINISH_S} s of the end of its input"
        return _until_end(self._command, self._rest, deadline, within, close_input=True)

    def close(self) -> None:
        """End it: its process group gets SIGTERM, and SIGKILL a second later."""
        self._command.end(kill=True)
