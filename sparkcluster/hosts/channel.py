"""A command on an SSH channel."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

from sparkcluster.errors import HostLost
from sparkcluster.hosts.base import Stream, remaining_s
from sparkcluster.hosts.paramiko_transport import exit_code, paramiko, send_exec
from sparkcluster.hosts.quote import MARK, end_line, named

_CHUNK = 1 << 15  # size of an SSH packet
_SEND_S = 30
_END_S = 2


class ChannelStream(Stream):
    """A command on its own channel; ``done`` is called once, when the channel is free."""

    _broken: ClassVar = (OSError, EOFError, paramiko.SSHException)

    def __init__(self, name: str, channel: paramiko.Channel, argv: Sequence[str], done: Callable[[], None]) -> None:
        super().__init__(name, argv)
        self._channel = channel
        self._done: Callable[[], None] | None = done
        self._ending = threading.Lock()
        self._reader = threading.Thread(target=self._drain_stderr, daemon=True)
        self._pid: int | None = None
        self._has_pid = threading.Event()
        self._has_ended = False
        channel.settimeout(_SEND_S)
        send_exec(channel, named(argv))
        # The command would block if its standard error were not read.
        self._reader.start()

    def _drain_stderr(self) -> None:
        with contextlib.suppress(*self._broken):
            while chunk := self._stderr_chunk():
                self._keep_stderr(chunk)
                # the line with its process ID; a login shell may print something before it
                match = None if self._pid else MARK.search(self._stderr)
                if match:
                    self._pid = int(match[1])
                    self._has_pid.set()
                    del self._stderr[match.start() : match.end()]
        self._has_pid.set()

    def _stderr_chunk(self) -> bytes:
        while True:
            try:
                return self._channel.recv_stderr(_CHUNK)
            except TimeoutError:
                if self._channel.closed:
                    return b""

    def _read(self, limit_s: float) -> bytes:
        self._channel.settimeout(limit_s)
        chunk = self._channel.recv(1 << 18)
        if not chunk and not self._channel.get_transport().is_active() and exit_code(self._channel, limit_s) is None:
            raise self._lost(None)
        return chunk

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            sent = self._channel.send(bytes(view[:_CHUNK]))
            if not sent:
                raise OSError("the channel is closed")
            view = view[sent:]

    def _close_input(self) -> None:
        self._channel.shutdown_write()

    def _ended(self, deadline: float) -> int:
        self._reader.join(remaining_s(deadline))
        if self._reader.is_alive():
            raise TimeoutError
        code = exit_code(self._channel, remaining_s(deadline))
        if code is None:
            raise self._lost(None)
        self._has_ended = True
        return code

    def _lost(self, error: Exception | None) -> HostLost:
        self._has_ended = True
        self.close()
        reason = f": {error}" if error and str(error) else ""
        return HostLost(f"connection to {self.name} broke during {self.task}{reason}", node=self.name, step=self.task)

    def close(self) -> None:
        """Close the channel; end the command first if it may still run. Takes at most 2 s."""
        with self._ending:
            done, self._done = self._done, None
        if done is None:
            return

        def leave() -> None:
            with contextlib.suppress(*self._broken):
                if not self._has_ended and not self._channel.closed:
                    self._end()
            with contextlib.suppress(*self._broken):
                self._channel.close()

        leaving = threading.Thread(target=leave, daemon=True)
        leaving.start()
        leaving.join(_END_S)
        done()

    def _end(self) -> None:
        """End the command: by its ``stop`` input, or else by killing its process group through another session."""
        if self.stop:
            self._write(self.stop)
            exit_code(self._channel, 1.5)
            return
        if not self._has_pid.wait(0.5) or self._pid is None:
            return
        session = self._channel.get_transport().open_session(timeout=1)
        session.settimeout(1.5)
        try:
            send_exec(session, end_line(self._pid))
            session.recv(1)
        finally:
            session.close()
