"""A node reached by SSH: one connection, many commands at the same time."""

from __future__ import annotations

import contextlib
import copy
import socket
import threading
import time
from collections.abc import Sequence

from sparkcluster.errors import CommandTimeout, HostError, HostLost, HostTimeout, UsageError
from sparkcluster.hosts.base import Host, remaining_s
from sparkcluster.hosts.channel import ChannelStream
from sparkcluster.hosts.handshake import Login, Prompts, why
from sparkcluster.hosts.paramiko_transport import Transport, paramiko
from sparkcluster.hosts.quote import shown
from sparkcluster.hosts.resolve import SshTarget

# OpenSSH's default of MaxSessions is 10; the last session is reserved for ending commands that timed out.
_SESSIONS = 9


class SshHost(Host):
    """A machine with an sshd. Connects at first use; if connecting fails, it is not retried until ``renew``.

    ``jump`` is the host of ``target.jump`` if several nodes share it. ``prompts`` asks the operator, also about the
    jump host; without it no questions are asked.
    """

    def __init__(
        self, name: str, target: SshTarget, jump: SshHost | None = None, *, prompts: Prompts | None = None
    ) -> None:
        super().__init__(name)
        self.target = target
        self._login = Login(name, target, prompts)
        self._closes_jump = jump is None and target.jump is not None
        self._jump = SshHost(name, target.jump, prompts=prompts) if jump is None and target.jump is not None else jump
        self._transport: Transport | None = None
        self._failure: HostError | UsageError | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._sessions = threading.BoundedSemaphore(_SESSIONS)

    @property
    def user(self) -> str:
        """The user of the login."""
        return self.target.user

    def separate_connection(self) -> SshHost:
        """The same machine over a separate connection; a password that was entered is reused."""
        found = SshHost(self.name, self.target, self._jump)
        found._login = copy.copy(self._login)
        return found

    def close(self) -> None:
        """Close the connection. Never raises."""
        self._closed = True
        if self._transport is not None:
            _hang_up(self._transport)
        if self._closes_jump and self._jump is not None:
            self._jump.close()

    def renew(self) -> None:
        """Close the connection, or forget that connecting failed: the next command connects again.

        An open connection to the jump host stays: other nodes may use it.
        """
        with self._lock:
            self._failure = None
            if self._transport is not None:
                _hang_up(self._transport)
                self._transport = None
        if self._jump is not None and self._jump._failure is not None:  # noqa: SLF001
            self._jump.renew()

    def transport(self) -> Transport:
        """The open transport; connects if necessary.

        A broken connection is opened again; one that could not be opened is not retried before ``renew``.
        """
        with self._lock:
            if self._closed:
                raise HostLost(f"connection to {self.name} was closed", node=self.name, step="connect")
            if self._failure is not None:
                # a copy: raising one object in many threads would mix up their tracebacks
                raise copy.copy(self._failure) from self._failure.__cause__
            if self._transport is None or not self._transport.is_active():
                try:
                    through = None if self._jump is None else self._jump.transport()
                    self._transport = self._login.connect(through)
                except (HostError, UsageError) as error:
                    self._failure = error
                    raise
                if self._closed:
                    _hang_up(self._transport)
                    raise HostLost(f"connection to {self.name} was closed", node=self.name, step="connect")
            return self._transport

    def _start(self, argv: Sequence[str], limit_s: float | None = None) -> ChannelStream:
        task = shown(argv)
        transport = self.transport()
        deadline = time.monotonic() + (limit_s or self.target.connect_timeout_s + 1)
        while True:
            if not self._sessions.acquire(timeout=remaining_s(deadline)):
                raise CommandTimeout(f"{self.name} has no free session for {task}", node=self.name, step=task)
            limit = min(remaining_s(deadline), self.target.connect_timeout_s)
            begin = time.monotonic()
            try:
                opened = transport.open_session(timeout=limit)
                return ChannelStream(self.name, opened, argv, self._sessions.release)
            except BaseException as error:
                self._sessions.release()
                if not isinstance(error, paramiko.SSHException | EOFError | OSError):
                    raise
                if not transport.is_active():
                    text = f"connection to {self.name} broke before {task} started"
                    raise HostLost(text, node=self.name, step=task) from error
                if time.monotonic() - begin >= limit:
                    # sshd does not respond: the next command connects again
                    threading.Thread(target=transport.close, daemon=True).start()
                    text = f"{self.name}: sshd opened no session within {limit:.3g} s"
                    hint = f"ssh -v {self.target.login} true"
                    raise HostTimeout(text, node=self.name, step=task, hint=hint) from error
                # Refused, or another session was refused at the same time: paramiko reports one of two.
                if time.monotonic() >= deadline:
                    text = f"{task} on {self.name} did not start in time: {why(error)[0]}"
                    hint = "check MaxSessions in /etc/ssh/sshd_config of the node"
                    raise CommandTimeout(text, node=self.name, step=task, hint=hint) from error
            time.sleep(0.05)


def _hang_up(transport: Transport) -> None:
    """Close immediately: without the shutdown, paramiko's thread notices 0.1 s later."""
    with contextlib.suppress(OSError, EOFError, AttributeError):
        transport.sock.shutdown(socket.SHUT_RDWR)
    transport.close()
