"""What paramiko's transport lacks for us: the signal that ended a command, and not waiting to start one."""

from __future__ import annotations

import logging
import shlex
import signal
import subprocess
from typing import Any, ClassVar

import paramiko
from paramiko.common import MSG_CHANNEL_REQUEST, cMSG_CHANNEL_REQUEST

# Errors reach the user through ours; without a handler Python would print paramiko's log beside them.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


def _handle_request(channel: paramiko.Channel, message: paramiko.Message) -> None:
    """Keep the signal of ``exit-signal``, which paramiko drops."""
    start = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        name = "SIG" + message.get_text()
        channel.ended_by = int(getattr(signal, name, signal.SIGKILL))  # type: ignore[attr-defined]
        channel.status_event.set()
        return
    message.packet.seek(start)
    paramiko.Channel._handle_request(channel, message)  # type: ignore[attr-defined]  # noqa: SLF001


class Transport(paramiko.Transport):
    """A transport that knows ``exit-signal``."""

    _channel_handler_table: ClassVar[Any] = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]  # noqa: SLF001
        MSG_CHANNEL_REQUEST: _handle_request,
    }


class Proxy(paramiko.ProxyCommand):
    """ssh_config's ProxyCommand in a session of its own.

    Ctrl-C in a terminal reaches all of our process group, and would cut the connection that the ranks are to be
    stopped over.
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


def ended_by(channel: paramiko.Channel) -> int | None:
    """Number of the signal that ended the channel's command, or None."""
    return getattr(channel, "ended_by", None)


def send_exec(channel: paramiko.Channel, line: str) -> None:
    """Ask for ``line`` to be run and go on: a round trip less than waiting for the answer.

    A node that refuses answers so, upon which paramiko closes the channel.
    """
    message = paramiko.Message()
    message.add_byte(cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("exec")
    message.add_boolean(True)
    message.add_string(line.encode("utf-8", "surrogateescape"))
    channel.get_transport()._send_user_message(message)  # type: ignore[attr-defined]  # noqa: SLF001


def prefer(transport: paramiko.Transport, kinds: list[str]) -> None:
    """Ask for host key types ``kinds`` (as known_hosts names them) before all others."""
    rsa = ("rsa-sha2-512", "rsa-sha2-256")
    names = [name for kind in kinds for name in (rsa if kind == "ssh-rsa" else (kind,))]
    options = transport.get_security_options()
    known = [name for name in names if name in options.key_types]
    options.key_types = tuple(dict.fromkeys([*known, *options.key_types]))
