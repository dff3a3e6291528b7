"""Opens a verified SSH connection: TCP, host key, login; prompts the operator; errors give the reason."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

from sparkcluster.errors import (
    AuthFailed,
    HostError,
    HostKeyChanged,
    HostKeyUnknown,
    HostLost,
    HostRefused,
    HostTimeout,
    HostUnknown,
    SparkclusterError,
    UsageError,
)
from sparkcluster.hosts import known_hosts
from sparkcluster.hosts.base import SILENT_S, remaining_s
from sparkcluster.hosts.paramiko_transport import Agent, Proxy, Transport, paramiko
from sparkcluster.hosts.resolve import SshTarget
from sparkcluster.printable import shell

E = TypeVar("E", bound=SparkclusterError)

KEEPALIVE_S = 10
# A handshake takes a second of CPU on a busy controller; running more of them only slows all down.
_HANDSHAKES = threading.BoundedSemaphore(8)
_PASSWORD_METHODS = {"password", "keyboard-interactive"}
# OpenSSH's default of NumberOfPasswordPrompts, ssh_config(5)
_TRIES = 3

# Patterns in paramiko's internal messages (``transport.py``, ``packet.py``), the reason to show instead, and a hint.
_CLOSED = "the server closed the connection"
_WORDS: tuple[tuple[str, str, str | None], ...] = (
    ("(?i)banner|protocol version", f"{_CLOSED} before it sent an SSH banner, or does not speak SSH", "check ssh.port"),
    (
        "acceptable|host key type",
        "the server has no key exchange, cipher or host key type in common with this program",
        "update OpenSSH on the node: sudo apt-get install openssh-server",
    ),
    ("^$|Negotiation failed|session|saw EOF|open channel", _CLOSED, None),
)


def why(error: BaseException) -> tuple[str, str | None]:
    """The reason of an SSH failure, to be used inside a sentence, and a hint if there is one."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower(), None
    text = " ".join(str(error).split()).rstrip(".")
    found = next(((reason, hint) for pattern, reason, hint in _WORDS if re.search(pattern, text)), None)
    return found or (text[:1].lower() + text[1:200], None)


class Prompts(Protocol):
    """Asks the operator about node ``name``, one question at a time.

    ``target`` is the machine that asks: the node or a jump host. Called from the connecting threads. An exception
    raised here, KeyboardInterrupt included, is raised in the thread that waits for them.
    """

    def host_key(self, name: str, target: SshTarget, kind: str, fingerprint: str) -> bool:
        """Whether to store the key of type ``kind`` (as in known_hosts) for ``target``."""

    def password(self, name: str, target: SshTarget, *, again: bool) -> str | None:
        """The password of ``target.user``, None for none; ``again`` if the last one was refused."""


class Login:
    """Opens connections to ``target`` for node ``name``; every HostError has that name.

    Keys are tried in OpenSSH's order: the inventory's, the agent's, then the files of ssh_config. ``prompts`` is asked
    about an unknown host key and for a password. An accepted password is kept in memory, for ``target`` only. The
    connection is closed during a question, since sshd ends connections without a login after its LoginGraceTime; the
    time to answer does not count towards ``target.connect_timeout_s``. The next connection checks the key that was
    accepted.
    """

    def __init__(self, name: str, target: SshTarget, prompts: Prompts | None = None) -> None:
        self.name = name
        self.target = target
        self._prompts = prompts
        self._password: str | None = None
        self._deadline = 0.0
        self._locked: list[Path] = []

    def connect(self, through: paramiko.Transport | None = None) -> Transport:
        """Return an open connection; ``through`` is the connection to its jump host, if it has one.

        TCP, handshake and login together take at most ``target.connect_timeout_s`` seconds.

        Raises:
            HostError: the class tells the reason.
            UsageError: the identity in the inventory cannot be read, or a host key cannot be stored.
        """
        typed, refused = self._password, 0
        while True:
            try:
                with _HANDSHAKES:
                    transport = self._attempt(through, typed)
            except HostKeyUnknown as error:
                kind, blob, fingerprint = error.key or ("", "", "")
                if self._prompts is None or not self._prompts.host_key(self.name, self.target, kind, fingerprint):
                    raise
                self.store(kind, blob)
            except AuthFailed as error:
                refused += typed is not None
                if self._prompts is None or not error.takes_password or refused == _TRIES:
                    raise
                typed = self._prompts.password(self.name, self.target, again=typed is not None)
                if typed is None:
                    raise
            else:
                self._password = typed
                return transport

    def store(self, kind: str, blob: str) -> known_hosts.Verdict:
        """Store a host key in the first known_hosts file; return its verdict afterwards.

        Raises:
            UsageError: the file cannot be written.
        """
        file = self.target.known_hosts[0]
        try:
            return known_hosts.store(file, self.target.key_name, kind, blob)
        except OSError as error:
            raise self._error(UsageError, f"its host key cannot be stored in {file}: {error.strerror}") from error

    def public_keys(self) -> list[str]:
        """The keys that a login offers, in order, each as ``type base64``; no certificates.

        Raises:
            UsageError: the identity in the inventory cannot be read.
        """
        self._check_identity()
        agent = Agent(self.target.agent)
        try:
            keys = [(key.get_name(), key.get_base64()) for key in self._keys(agent)]
        finally:
            agent.close()
        return list(dict.fromkeys(f"{kind} {blob}" for kind, blob in keys if "-cert-" not in kind))

    def _error(self, kind: type[E], text: str, hint: str | None = None) -> E:
        return kind(f"{self.name}: {text}", node=self.name, step="connect", hint=hint)

    def _late(self) -> bool:
        return time.monotonic() >= self._deadline - 0.1

    def _attempt(self, through: paramiko.Transport | None, password: str | None) -> Transport:
        target = self.target
        self._check_identity()
        self._deadline = time.monotonic() + target.connect_timeout_s
        sock = self._reach(through)
        transport = None
        try:
            transport = Transport(sock)
            transport.banner_timeout = transport.handshake_timeout = remaining_s(self._deadline)
            transport.clear_to_send_timeout = target.connect_timeout_s
            transport.prefer(known_hosts.kinds(target.known_hosts, target.key_name))
            transport.start_client(timeout=remaining_s(self._deadline))
            self._check_host_key(transport.get_remote_server_key())
            if password is None:
                self._by_key(transport)
            else:
                self._by_password(transport, password)
        except BaseException as error:
            if transport is not None:
                transport.close()
            sock.close()
            if isinstance(error, paramiko.SSHException | OSError | EOFError):
                raise self._handshake_failed(error) from error
            raise
        transport.set_keepalive(KEEPALIVE_S)
        return transport

    def _handshake_failed(self, error: Exception) -> HostError:
        target = self.target
        if self._late():
            text = f"sshd on {target.host} port {target.port} accepted the connection and then sent nothing for"
            hint = f"run ssh -v {target.login} true to see where it stops; on the node: sudo systemctl restart ssh"
            return self._error(HostTimeout, f"{text} {target.connect_timeout_s:g} s", hint)
        reason, remedy = why(error)
        text = f"the SSH handshake with {target.host} port {target.port} failed: {reason}"
        return self._error(HostLost, text, remedy or f"ssh -v {target.login} true")

    def _reach(self, through: paramiko.Transport | None) -> Any:
        """A socket to the node's sshd, or an object used as one."""
        target = self.target
        if through is None:
            return Proxy(target.proxy_command) if target.proxy_command else self._tcp()
        try:
            return through.open_channel(
                "direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=remaining_s(self._deadline)
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            kind, verb = (HostTimeout, "does not reach") if self._late() else (HostRefused, "cannot reach")
            jump = target.jump.host if target.jump else "the jump host"
            reason = getattr(error, "text", "").lower() or why(error)[0]  # text: why the channel was refused
            raise self._error(kind, f"{jump} {verb} {target.host} port {target.port}: {reason}") from error

    def _tcp(self) -> socket.socket:
        target = self.target
        where = f"{target.host} port {target.port}"
        try:
            found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # UnicodeError: a name with an empty or too long label
            hint = f"set host to an address; {shell('ping', target.host)}   tests the name"
            raise self._error(HostUnknown, f"{target.host} does not resolve to an address", hint) from error
        failure: OSError = ConnectionRefusedError()
        for index, (family, kind, protocol, _, address) in enumerate(found):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(remaining_s(self._deadline) / (len(found) - index))
                sock.connect(address)
            except OSError as error:
                failure = error
                sock.close()
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                # Detects a node that vanished within this time instead of 15 minutes.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENT_S * 1000))
            return sock
        if isinstance(failure, TimeoutError):
            text = f"no answer from {where} within {target.connect_timeout_s:g} s"
            raise self._error(HostTimeout, text, f"ping {target.host}") from failure
        hint = f"ping {target.host}, and check its power"
        if isinstance(failure, ConnectionRefusedError):
            hint = f"on the node: sudo systemctl enable --now ssh; or allow port {target.port} in its firewall"
        if sys.platform == "darwin" and failure.errno == errno.EHOSTUNREACH:
            # Apple's TN3179: a program without permission for the local network gets this error
            hint += "; on macOS: System Settings, Privacy & Security, Local Network: allow your terminal"
        raise self._error(HostRefused, f"{where}: {why(failure)[0]}", hint) from failure

    def _check_host_key(self, key: paramiko.PKey) -> None:
        """Accept a host key, store it if host_keys is accept-new, or raise."""
        target = self.target
        kind, blob = key.get_name(), key.get_base64()
        verdict, file = known_hosts.check(target.known_hosts, target.key_name, kind, blob)
        shown = f"{kind} {key.fingerprint}"
        if verdict == "unknown" and target.host_keys == "accept-new":
            verdict, file = self.store(kind, blob), target.known_hosts[0]
        if verdict == "known":
            return
        if verdict == "unknown":
            hint = f"run ssh {target.login} true once to compare and store it, or set host_keys: accept-new"
            unknown = self._error(HostKeyUnknown, f"the host key of {target.key_name} is unknown ({shown})", hint)
            unknown.key = kind, blob, key.fingerprint
            raise unknown
        text = f"has changed ({shown}): the node was reinstalled, or another machine answers"
        hint = shell("ssh-keygen -R", target.key_name, "-f", file)
        if verdict == "revoked":
            text = f"is marked @revoked in {file} ({shown})"
            hint = f"if this key is valid, remove its line from {file}"
        raise self._error(HostKeyChanged, f"the host key of {target.key_name} {text}", hint)

    def _check_identity(self) -> None:
        target = self.target
        self._locked = []
        if target.identity is not None:
            from sparkcluster import private_key

            agent = target.agent != "none" and bool(target.agent or os.environ.get("SSH_AUTH_SOCK"))
            found = private_key.wrong(str(target.identity), agent=agent)
            if found:
                raise self._error(UsageError, f"identity {target.identity} {found[0]}", found[1])

    def _by_key(self, transport: Transport) -> None:
        agent = Agent(self.target.agent)
        tried, reason, hint = 0, "no key was accepted", None
        try:
            for key in self._keys(agent):
                tried += 1
                transport.auth_timeout = remaining_s(self._deadline)
                try:
                    more = transport.auth_publickey(self.target.user, key)
                except paramiko.AuthenticationException:
                    if self._late():
                        raise
                    if not transport.is_active():
                        reason = f"the server closed the connection after {tried} key{'' if tried == 1 else 's'}"
                        hint = "set ssh.identity: its sshd allows few attempts (MaxAuthTries)"
                        break
                    continue
                if not more:
                    return
                reason = f"it requires {', '.join(more)} besides a key"
        finally:
            agent.close()
        if not tried:
            reason, hint = "there is no key to offer", f"ssh-keygen -t ed25519, then {self._copy_key()}"
        if agent.silent:
            reason += f"; no agent answers at {agent.silent}"
        if self._locked:
            reason += f"; {self._locked[0]} is protected by a passphrase"
            hint = shell("ssh-add", self._locked[0])
        self._refused(reason, self._methods(transport), hint)

    def _methods(self, transport: Transport) -> set[str]:
        """The login methods that sshd allows this user; both password methods if it does not answer."""
        transport.auth_timeout = remaining_s(self._deadline)
        try:
            transport.auth_none(self.target.user)
        except paramiko.BadAuthenticationType as error:
            return set(error.allowed_types)
        except (paramiko.SSHException, EOFError, OSError):
            return set(_PASSWORD_METHODS)
        return set()

    def _by_password(self, transport: Transport, password: str) -> None:
        methods = self._methods(transport)
        user, answers = self.target.user, [password]

        def answer(_title: str, _instructions: str, fields: list[Any]) -> list[str]:
            # PAM may ask for more, such as a code: do not send the password as that
            return [answers.pop() if answers else "" for _ in fields]

        transport.auth_timeout = remaining_s(self._deadline)
        try:
            if "password" in methods:
                more = transport.auth_password(user, password, fallback=False)
            else:
                more = transport.auth_interactive(user, answer)
        except paramiko.AuthenticationException:
            if self._late():
                raise
            self._refused("the password was refused", methods)
        if more:
            self._refused(f"it requires {', '.join(more)} besides a password", set())

    def _copy_key(self) -> str:
        option = ["-i", self.target.identity] if self.target.identity else []
        return f"{shell('ssh-copy-id', *option)} {self.target.login}"

    def _refused(self, reason: str, methods: set[str], hint: str | None = None) -> NoReturn:
        text = f"login as {self.target.user} on {self.target.host} failed: {reason}"
        failed = self._error(AuthFailed, text, hint or self._copy_key())
        failed.takes_password = bool(methods & _PASSWORD_METHODS)
        raise failed

    def _keys(self, agent: paramiko.Agent) -> Iterator[paramiko.PKey]:
        target = self.target
        try:
            if target.identity is not None:
                yield from self._load(target.identity, agent)
        except (ValueError, paramiko.SSHException) as error:
            text = f"identity {target.identity} is not a private key, is damaged, or has an unknown type"
            raise self._error(UsageError, text, f"{shell('ssh-keygen -y -f', target.identity)}   reads it") from error
        if not target.identities_only:
            yield from agent.get_keys()
        for file in target.identities:
            with contextlib.suppress(ValueError, OSError, paramiko.SSHException):  # ssh skips such files, too
                yield from self._load(file, agent)

    def _load(self, file: Path, agent: paramiko.Agent) -> Sequence[paramiko.PKey]:
        """The key in ``file``; if it is public or has a passphrase, the agent's copy of it, if any."""
        public = file
        if file.suffix != ".pub":
            try:
                return [paramiko.PKey.from_path(file)]
            except (paramiko.PasswordRequiredException, TypeError):
                public = file.with_name(file.name + ".pub")
        blob = public.read_text(errors="replace").split()[1:2] if public.is_file() else []
        found = [key for key in agent.get_keys() if [key.get_base64()] == blob][:1]
        if not found and public is not file:
            self._locked.append(file)
        return found
