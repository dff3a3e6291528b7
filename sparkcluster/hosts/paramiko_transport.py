"""All uses of paramiko that go beyond its documented interface.

paramiko drops the signal that ended a command, and waits a round trip before it starts one. ``pyproject.toml`` bounds
its version; ``tests/unit/hosts/test_paramiko_transport.py`` fails if a name that is used here is removed.
"""

from __future__ import annotations

import logging
import shlex
import signal
import socket
import subprocess
import sys
from typing import Any, ClassVar

# paramiko imports invoke only for "Match exec" in ssh_config, and works without it. The import takes a fifth of the
# time of a short command.
_without_invoke = "invoke" not in sys.modules
if _without_invoke:
    sys.modules["invoke"] = None  # type: ignore[assignment]
try:
    import paramiko
    from paramiko.common import MSG_CHANNEL_REQUEST, cMSG_CHANNEL_REQUEST
finally:
    if _without_invoke:
        del sys.modules["invoke"]

__all__ = ["Agent", "Proxy", "Transport", "exit_code", "paramiko", "send_exec", "ssh_config"]

# Without a handler Python would print paramiko's log to standard error.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


def _handle_request(channel: paramiko.Channel, message: paramiko.Message) -> None:
    """Keep the signal in ``exit-signal``, which paramiko drops."""
    start = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        name = "SIG" + message.get_text()
        channel.exit_status = -int(getattr(signal, name, signal.SIGKILL))
        channel.exit_signal = True  # type: ignore[attr-defined]
        channel.status_event.set()
        return
    message.packet.seek(start)
    paramiko.Channel._handle_request(channel, message)  # type: ignore[attr-defined]  # noqa: SLF001


class _Channel(paramiko.Channel):
    """A channel that marks its input messages, so that its transport can drop them once the channel is closed."""

    def _send(self, data: bytes, message: Any) -> int:
        message.channel = self
        return int(super()._send(data, message))  # type: ignore[misc]

    def _send_eof(self) -> Any:
        message = super()._send_eof()  # type: ignore[misc]
        if message is not None:
            message.channel = self
        return message


class Transport(paramiko.Transport):
    """A transport that keeps ``exit-signal``, and sends no input to a command that has ended.

    paramiko releases the channel's lock before it sends input. If input arrives for a channel that both sides have
    closed, sshd ends the whole connection.
    """

    _channel_handler_table: ClassVar[Any] = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]  # noqa: SLF001
        MSG_CHANNEL_REQUEST: _handle_request,
    }

    def open_channel(self, *arguments: Any, **options: Any) -> paramiko.Channel:
        """Return a channel of our class."""
        channel = super().open_channel(*arguments, **options)
        channel.__class__ = _Channel
        return channel

    def _send_message(self, data: Any) -> None:
        """Called by one thread at a time; paramiko marks a channel as closed before it sends the close."""
        if not (hasattr(data, "channel") and data.channel.closed):
            super()._send_message(data)  # type: ignore[misc]

    def get_exception(self) -> Exception | None:
        """The error that ended the connection; of any class for a message that paramiko cannot parse."""
        found = super().get_exception()
        if found is None or isinstance(found, paramiko.SSHException | OSError | EOFError):
            return found
        return paramiko.SSHException("the server sent an invalid message")

    def prefer(self, kinds: list[str]) -> None:
        """Request host key types ``kinds`` (as in known_hosts) before all others."""
        rsa = ("rsa-sha2-512", "rsa-sha2-256")
        names = [name for kind in kinds for name in (rsa if kind == "ssh-rsa" else (kind,))]
        options = self.get_security_options()
        supported = [name for name in names if name in options.key_types]
        options.key_types = tuple(dict.fromkeys([*supported, *options.key_types]))


class Agent(paramiko.Agent):
    """The agent at socket ``path``; without keys for ``none``; by default the agent of ``SSH_AUTH_SOCK``.

    Attributes:
        silent: the path, if no agent answers there.
    """

    def __init__(self, path: str | None) -> None:
        self.silent: str | None = None
        if path is None:
            super().__init__()
            return
        paramiko.agent.AgentSSH.__init__(self)
        if path == "none":
            return
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
        except (OSError, paramiko.SSHException):
            connection.close()
            self.silent = path


class Proxy(paramiko.ProxyCommand):
    """The ProxyCommand of ssh_config in its own session.

    Ctrl-C in a terminal reaches the whole process group; without this it would break the connection that is needed to
    stop the ranks.
    """

    def __init__(self, command: str) -> None:
        self.cmd = shlex.split(command)
        self.process = subprocess.Popen(
            self.cmd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self.timeout = None


def exit_code(channel: paramiko.Channel, timeout_s: float) -> int | None:
    """Exit code of the channel's command, negative for a signal; None if the connection broke first.

    Raises:
        TimeoutError: the command did not exit within ``timeout_s``.
    """
    if not channel.status_event.wait(timeout_s):
        raise TimeoutError
    status = channel.exit_status
    return status if status >= 0 or hasattr(channel, "exit_signal") else None


def send_exec(channel: paramiko.Channel, line: str) -> None:
    """Request to run ``line`` without waiting for the reply; this saves a round trip.

    If the node refuses, paramiko closes the channel.
    """
    message = paramiko.Message()
    message.add_byte(cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("exec")
    message.add_boolean(True)
    message.add_string(line.encode("utf-8", "surrogateescape"))
    channel.get_transport()._send_user_message(message)  # type: ignore[attr-defined]  # noqa: SLF001


def ssh_config(host: str) -> dict[str, Any]:
    """The ssh_config of ``host`` from the user's and the system's file, read as fabric does: without ``Include``.

    Raises:
        paramiko.SSHException: a file is invalid.
    """
    import fabric
    import invoke

    paramiko.config.invoke = invoke  # type: ignore[attr-defined] # "Match exec" needs it
    config = fabric.Config(lazy=True)
    config.load_ssh_config()
    return dict(config.base_ssh_config.lookup(host))
